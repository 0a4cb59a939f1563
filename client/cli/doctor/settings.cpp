#include "daemon/core/words/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <ranges>

#include "client/cli/doctor/checks.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/base/suggest.h"

namespace cgdebug::cli {
namespace {

// That do something by themselves in a program that knows nothing of them.
constexpr std::string_view kOfPackage[] = {"CGDEBUG_WATCH", "CGDEBUG_LAUNCH_BLOCKING",
                                           "CGDEBUG_RACES", "CGDEBUG_ASK", "CGDEBUG_REWIND"};

bool IsOurs(std::string_view name) { return name == "CGDEBUG" || name.starts_with("CGDEBUG_"); }

std::vector<std::string> NamesOfTable() {
  std::vector<std::string> names;
  for (const words::Setting& setting : words::Settings()) {
    if (IsOurs(setting.names)) names.emplace_back(setting.names);
  }
  return names;
}

}  // namespace

std::vector<Check> CheckSettings() {
  constexpr const char* kName = "settings";
  std::vector<Check> checks;
  for (const words::MalformedSetting& setting : words::MalformedSettings()) {
    checks.push_back({.name = kName,
                      .level = Level::kFail,
                      .text = Printable(setting.problem) + "; a job goes on as without it",
                      .fix = "unset " + setting.name});
  }
  const std::vector<std::string> known = NamesOfTable();
  std::vector<std::string> set;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string name(text.substr(0, text.find('=')));
    if (!IsOurs(name)) continue;
    set.push_back(name);
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    checks.push_back(
        {.name = kName,
         .level = Level::kWarn,
         .text = fmt::format("nothing reads {}.{}", Printable(name), DidYouMean(name, known)),
         .fix = "cgdebug-cli help variables"});
  }
  std::sort(set.begin(), set.end());
  if (checks.empty()) {
    checks.push_back({.name = kName,
                      .text = set.empty() ? "no variable CGDEBUG_... is set"
                                          : fmt::format("set: {}", fmt::join(set, ", ")),
                      .fix = ""});
  }
  std::erase_if(set, [](const std::string& name) {
    return std::ranges::find(kOfPackage, name) == std::ranges::end(kOfPackage);
  });
  if (!set.empty()) {
    checks.push_back(
        {.name = kName,
         .text = fmt::format("{}: read by programs that import cgdebug or whose Python has it "
                             "installed, and by all that cgdebug-cli run starts",
                             fmt::join(set, ", ")),
         .fix = ""});
  }
  return checks;
}

}  // namespace cgdebug::cli
