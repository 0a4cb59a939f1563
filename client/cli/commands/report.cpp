#include "client/report/report.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "client/cli/command.h"
#include "client/cli/output_file.h"
#include "client/cli/sources.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

struct ReportCommand {
  std::string a = "live";
  std::string b;  // a source; anything else is a probe
  ScopeOptions scope;
  std::string output;
  bool force = false;
};

// "runs/a.cgrec" -> "a.html".
std::string DefaultOutput(const std::string& source) {
  std::filesystem::path path(source);
  if (!path.has_filename()) path = path.parent_path();
  std::string stem = path.stem().string();
  if (stem.empty() || stem == "." || stem == "..") stem = "report";
  return stem + ".html";
}

int RunReport(Context& context, ReportCommand& command) {
  std::string b = command.b;
  if (!b.empty() && b != "live" && !source::LooksLikeSource(b)) {
    command.scope.probes.insert(command.scope.probes.begin(), b);
    b.clear();
  }
  Result<analysis::Scope> scope = MakeScope(context, command.scope);
  if (!scope.ok()) return context.Fail(kExitTrouble, scope.error().message);
  std::unique_ptr<source::Source> source_a, source_b;
  if (const int failed = OpenSource(context, command.a, &source_a); failed != kExitOk) {
    return failed;
  }
  if (!b.empty()) {
    if (const int failed = OpenSource(context, b, &source_b); failed != kExitOk) return failed;
  }
  const auto is_wanted = [&](const source::Slot& slot) { return scope->Wants(slot); };
  // A source without any probe has a report too: it says so.
  if (!source_a->slots().empty() && std::ranges::none_of(source_a->slots(), is_wanted)) {
    return FailNoProbe(context, *source_a, command.scope, ShellWord(command.a) + context.SameJob());
  }
  const Result<report::Report> report = report::MakeReport(
      *source_a, source_b.get(), {.scope = *scope, .name_a = command.a, .name_b = b});
  if (!report.ok()) return context.Fail(kExitTrouble, report.error().message);
  const std::string output = command.output.empty() ? DefaultOutput(command.a) : command.output;
  const Result<void> written = WriteFile(output, command.force, "", report->html);
  if (!written.ok()) return context.Fail(kExitTrouble, written.error().message);
  if (output == "-") return kExitOk;
  if (context.options.json) {
    Context::PrintJson(
        {{"path", output}, {"bytes", report->html.size()}, {"verdict", report->verdict}});
    return kExitOk;
  }
  Context::Print(Printable(report->verdict) + "\n");
  context.Note(fmt::format("{} written, {}: open it in a browser", Printable(output),
                           numerics::FormatBytes(report->html.size())));
  return kExitOk;
}

}  // namespace

RunFunction AddReport(CLI::App& app) {
  auto command = std::make_shared<ReportCommand>();
  app.add_option("SOURCE", command->a, kSourceHelp);
  app.add_option("SOURCE2", command->b, "what SOURCE is compared with");
  app.add_option("PROBE", command->scope.probes, "globs; 're:...', '!...' excludes");
  app.add_option("--replays", command->scope.replays, "only these replays")->type_name("100..200");
  AddWhichOptions(app, &command->scope.which);
  app.add_option("-o,--output", command->output,
                 "the file to write (the source's name with .html); - for stdout")
      ->type_name("FILE");
  app.add_flag("-f,--force", command->force, "overwrite FILE");
  return [command](Context& context) { return RunReport(context, *command); };
}

}  // namespace cgdebug::cli
