#include "client/report/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/output_file.h"
#include "client/cli/report_server.h"
#include "client/cli/sources/sources.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct ReportCommand {
  std::string a = "live";
  std::string b;  // a source; anything else is a probe
  ScopeOptions scope;
  std::string output;
  bool force = false;
  bool open = false;
  bool serve = false;
  std::uint16_t port = 0;
};

// "runs/a.cgrec" -> "a".
std::string StemOf(const std::string& source) {
  std::filesystem::path path(source);
  if (!path.has_filename()) path = path.parent_path();
  std::string stem = path.stem().string();
  if (stem.empty() || stem == "." || stem == "..") stem = "report";
  return stem;
}

// "a.html", or of two sources "a-b.html".
std::string DefaultOutput(const std::string& a, const std::string& b) {
  return StemOf(a) + (b.empty() ? "" : "-" + StemOf(b)) + ".html";
}

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "HOST";
}

int Serve(const Context& context, const ReportCommand& command, const std::string& html) {
  const Result<int> signal =
      ServePage(html, command.port, [&](std::uint16_t port, const std::string& path) {
        const std::string address = fmt::format("http://127.0.0.1:{}{}", port, path);
        if (context.options.json) return Context::PrintJson({{"address", address}});
        Context::Print(address + "\n");
        std::fflush(stdout);
        context.Note(fmt::format(
            "to reach it from another machine, type there: ssh -N -L {0}:127.0.0.1:{0} {1}   "
            "Ctrl-C ends it",
            port, ShellWord(HostName())));
      });
  if (!signal.ok()) return context.Fail(kExitTrouble, signal.error().message);
  return kExitOk;  // whoever serves it ends it with Ctrl-C
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
  if (const int failed = OpenSource(context, command.a, &source_a)) return failed;
  if (!b.empty()) {
    if (const int failed = OpenSource(context, b, &source_b)) return failed;
  }
  const auto is_wanted = [&](const source::Slot& slot) { return scope->Wants(slot); };
  // A source without any probe has a report too: it says so.
  if (!source_a->slots().empty() && std::ranges::none_of(source_a->slots(), is_wanted)) {
    return FailNoProbe(context, *source_a, command.scope, ShellWord(command.a) + context.SameJob());
  }
  const Result<report::Report> report = report::MakeReport(
      *source_a, source_b.get(), {.scope = *scope, .name_a = command.a, .name_b = b});
  if (!report.ok()) return context.Fail(kExitTrouble, report.error().message);
  if (command.serve) {
    if (!context.options.json) Context::Print(Printable(report->verdict) + "\n");
    return Serve(context, command, report->html);
  }
  const std::string output = command.output.empty() ? DefaultOutput(command.a, b) : command.output;
  const Result<void> written = WriteFile(output, command.force, "", report->html);
  if (!written.ok()) return context.Fail(kExitTrouble, written.error().message);
  if (output == "-") return kExitOk;
  if (context.options.json) {
    Context::PrintJson(
        {{"path", output}, {"bytes", report->html.size()}, {"verdict", report->verdict}});
  } else {
    Context::Print(Printable(report->verdict) + "\n");
    context.Note(fmt::format("{} written, {}{}", Printable(output),
                             numerics::FormatBytes(report->html.size()),
                             command.open ? "" : ": open it in a browser (--open, --serve)"));
  }
  if (!command.open) return kExitOk;
  const Result<void> opened = OpenInBrowser(output);
  return opened.ok() ? static_cast<int>(kExitOk)
                     : context.Fail(kExitTrouble, opened.error().message);
}

}  // namespace

RunFunction AddReport(CLI::App& app) {
  auto command = std::make_shared<ReportCommand>();
  app.add_option("SOURCE", command->a, kSourceHelp);
  app.add_option("SOURCE2", command->b, "what SOURCE is compared with");
  app.add_option("PROBE", command->scope.probes, "globs; 're:...', '!...' excludes");
  app.add_option("--replays", command->scope.replays, "only these replays")->type_name("100..200");
  AddWhichOptions(app, &command->scope.which);
  CLI::Option* output =
      app.add_option("-o,--output", command->output,
                     "the file to write (the source's name with .html); - for stdout")
          ->type_name("FILE");
  CLI::Option* open =
      app.add_flag("--open", command->open, "then open it in a browser (BROWSER or xdg-open)");
  CLI::Option* serve = app.add_flag("--serve", command->serve,
                                    "write no file; show it to a browser, also on another machine "
                                    "over ssh, until Ctrl-C")
                           ->excludes(open)
                           ->excludes(output);
  app.add_option("--port", command->port, "with --serve: the port; default: one that is free")
      ->check(WholeNumber(1, 65535))
      ->type_name("N")
      ->needs(serve);
  app.add_flag("-f,--force", command->force, "overwrite FILE");
  return [command](Context& context) { return RunReport(context, *command); };
}

}  // namespace cgdebug::cli
