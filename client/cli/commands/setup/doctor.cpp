#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/doctor/checks.h"
#include "client/cli/views/json.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::cli {
namespace {

const char* LevelText(Level level) {
  switch (level) {
    case Level::kOk:
      return "OK";
    case Level::kWarn:
      return "WARN";
    case Level::kFail:
      return "FAIL";
  }
  return "";
}

std::string Mark(Level level, const Style& style) {
  const std::string text = fmt::format("{:<4}", LevelText(level));
  if (level == Level::kOk) return style.Green(text);
  return level == Level::kWarn ? style.Yellow(text) : style.Red(text);
}

std::vector<Check> RunChecks(Context& context, std::uint64_t modules) {
  std::vector<Check> checks = {CheckShm(modules),   CheckMemlock(), CheckProcFd(),
                               CheckRemoveIpc(),    CheckNvidia(),  CheckRuntimeDir(context),
                               CheckDaemon(context)};
  for (Check& check : CheckJobs(context)) checks.push_back(std::move(check));
  for (Check& check : CheckSettings()) checks.push_back(std::move(check));
  for (Check& check : CheckStaleSegments(layout::kShmDirectory)) checks.push_back(std::move(check));
  for (Check& check : CheckMarks(layout::kShmDirectory)) checks.push_back(std::move(check));
  for (Check& check : CheckPython()) checks.push_back(std::move(check));
  return checks;
}

int RunDoctor(Context& context, std::uint64_t modules) {
  const std::vector<Check> checks = RunChecks(context, modules);
  bool any_failed = false;
  Json array = Json::array();
  std::string out;
  for (const Check& check : checks) {
    any_failed = any_failed || check.level == Level::kFail;
    if (context.options.json) {
      array.push_back({{"name", check.name},
                       {"level", LevelText(check.level)},
                       {"text", check.text},
                       {"fix", check.fix}});
    } else {
      out +=
          fmt::format("{}  {:<14}  {}\n", Mark(check.level, context.out), check.name, check.text);
      if (!check.fix.empty()) out += fmt::format("{:22}fix: {}\n", "", check.fix);
    }
  }
  if (context.options.json) out = Dump({{"checks", std::move(array)}}, /*indented=*/true) + "\n";
  Context::Print(out);
  return any_failed ? kExitFound : kExitOk;
}

}  // namespace

RunFunction AddDoctor(CLI::App& app) {
  auto modules = std::make_shared<std::uint64_t>(0);
  app.add_option("--modules", *modules,
                 "says whether /dev/shm has room to watch a model of that many modules")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  return [modules](Context& context) { return RunDoctor(context, *modules); };
}

}  // namespace cgdebug::cli
