#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "client/analysis/check_report.h"
#include "client/analysis/gaps.h"
#include "client/cli/command.h"
#include "client/cli/sources.h"
#include "client/cli/views/source_table.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

struct InfoOptions {
  std::string source = "live";
  ScopeOptions scope;
  bool each = false;  // graph and shape
};

// Whether each graph and shape of a probe has a line of its own.
bool IsWhole(const Context& context, const InfoOptions& options, const analysis::Scope& scope) {
  return options.each || context.options.plain || !scope.which.selects_all();
}

constexpr std::size_t kMaxMissingLines = 8;

std::string SessionLine(const recording::Session& session, bool died) {
  std::string line =
      fmt::format("  {}  pid {}{}", session.label.empty() ? "(damaged)" : session.label,
                  session.pid, died ? "  died" : "");
  if (session.rank >= 0) line += fmt::format("  rank {} of {}", session.rank, session.world_size);
  if (!session.hostname.empty()) line += "  on " + session.hostname;
  if (session.created_ns > 0) line += "  since " + FormatTime(session.created_ns);
  if (!session.command.empty()) line += "\n    " + session.command;
  return line + "\n";
}

std::string Head(source::Source& source, const Style& style) {
  const source::Description about = source.Describe();
  std::string head = fmt::format("{}  {}", style.Bold(Printable(about.path)), about.kind);
  if (about.bytes > 0) head += ", " + numerics::FormatBytes(about.bytes);
  if (!about.ending.empty()) head += ", " + about.ending;
  head += "\n";
  for (const recording::RecordingReader* reader : source.Recordings()) {
    for (const recording::Session& session : reader->sessions()) {
      const bool died = std::ranges::any_of(reader->marks(), [&](const recording::Mark& mark) {
        return mark.kind == recording::MarkKind::kSessionDied && mark.session == session.id;
      });
      head += PrintableLines(SessionLine(session, died));
    }
  }
  return head;
}

std::string Completeness(const analysis::GapSummary& gaps, const Style& style) {
  const std::string account = ToText(gaps.account);
  if (gaps.count == 0) {
    const char* words = gaps.goes_on.empty() ? "complete: nothing is known to be missing"
                                             : "nothing is missing so far";
    return style.Green(words) + fmt::format(" ({})\n", account) +
           (gaps.goes_on.empty() ? "" : "  " + gaps.goes_on + "\n");
  }
  std::string text = style.Yellow("not complete") + fmt::format(": {}\n", account);
  for (std::size_t i = 0; i < std::min(gaps.sentences.size(), kMaxMissingLines); ++i) {
    text += "  " + PrintableLines(gaps.sentences[i]) + "\n";
  }
  if (gaps.sentences.size() > kMaxMissingLines) {
    text += fmt::format("  and {} more like these\n", gaps.sentences.size() - kMaxMissingLines);
  }
  return text;
}

int PrintTable(Context& context, const Result<TextTable>& table) {
  if (!table.ok()) return context.Fail(kExitTrouble, table.error().message);
  Context::Print(context.options.plain
                     ? table->RenderPlain()
                     : table->Render(context.out, TerminalColumns(STDOUT_FILENO)));
  return kExitOk;
}

// Opens what the options name; 0, or what to exit with.
int Open(Context& context, const InfoOptions& options, std::unique_ptr<source::Source>* source,
         analysis::Scope* scope) {
  Result<analysis::Scope> made = MakeScope(context, options.scope);
  if (!made.ok()) return context.Fail(kExitTrouble, made.error().message);
  *scope = *std::move(made);
  if (const int failed = OpenSource(context, options.source, source); failed != kExitOk) {
    return failed;
  }
  for (const source::Slot& slot : (*source)->slots()) {
    if (scope->Wants(slot)) return kExitOk;
  }
  return FailNoProbe(context, **source, options.scope);
}

int RunInfo(Context& context, const InfoOptions& options) {
  std::unique_ptr<source::Source> source;
  analysis::Scope scope;
  if (const int failed = Open(context, options, &source, &scope); failed != kExitOk) return failed;
  analysis::GapSummary gaps = analysis::SummarizeGaps(*source, scope);
  analysis::AddUnreadable(*source, scope, &gaps);
  if (context.options.json) {
    const source::Description about = source->Describe();
    Result<Json> probes = SlotsJson(*source, scope);
    if (!probes.ok()) return context.Fail(kExitTrouble, probes.error().message);
    Context::Print(Dump({{"path", about.path},
                         {"kind", about.kind},
                         {"bytes", about.bytes},
                         {"ending", about.ending},
                         {"sessions", about.sessions},
                         {"complete", gaps.count == 0 && gaps.goes_on.empty()},
                         {"goes_on", !gaps.goes_on.empty()},
                         {"account", analysis::AccountJson(gaps.account)},
                         {"missing", gaps.sentences},
                         {"probes", *std::move(probes)}},
                        /*indented=*/true) +
                   "\n");
    return kExitOk;
  }
  if (!context.options.plain) Context::Print(Head(*source, context.out));
  const Result<TextTable> table =
      SlotTable(*source, scope, context.out, IsWhole(context, options, scope));
  if (const int failed = PrintTable(context, table); failed != kExitOk) return failed;
  if (!context.options.plain) {
    Context::Print(Completeness(gaps, context.out) + PrintableLines(RanksHere(*source)));
  }
  return kExitOk;
}

int RunStats(Context& context, const InfoOptions& options) {
  std::unique_ptr<source::Source> source;
  analysis::Scope scope;
  if (const int failed = Open(context, options, &source, &scope); failed != kExitOk) return failed;
  SayUnread(context, *source);
  if (!context.options.json) {
    const int failed = PrintTable(
        context, StatsTable(*source, scope, context.out, IsWhole(context, options, scope)));
    analysis::GapSummary gaps = analysis::SummarizeGaps(*source, scope);
    analysis::AddUnreadable(*source, scope, &gaps);
    if (gaps.count > 0 && !gaps.sentences.empty()) {
      context.Say(PrintableLines(fmt::format(
          "not all of it: {}{}", gaps.sentences.front(),
          gaps.sentences.size() > 1 ? fmt::format(", and {} more", gaps.sentences.size() - 1)
                                    : "")));
    }
    if (!context.options.plain) Context::Print(PrintableLines(RanksHere(*source)));
    return failed;
  }
  Result<Json> probes = StatsJson(*source, scope);
  if (!probes.ok()) return context.Fail(kExitTrouble, probes.error().message);
  analysis::GapSummary gaps = analysis::SummarizeGaps(*source, scope);
  analysis::AddUnreadable(*source, scope, &gaps);
  Context::Print(Dump({{"probes", *std::move(probes)},
                       {"complete", gaps.count == 0 && gaps.goes_on.empty()},
                       {"missing", gaps.sentences},
                       {"account", analysis::AccountJson(gaps.account)}},
                      /*indented=*/true) +
                 "\n");
  return kExitOk;
}

std::shared_ptr<InfoOptions> AddOptions(CLI::App& app) {
  auto options = std::make_shared<InfoOptions>();
  app.add_option("SOURCE", options->source, kSourceHelp);
  app.add_option("PROBE", options->scope.probes, "globs; 're:...', '!...' excludes");
  app.add_option("--replays", options->scope.replays, "only these")->type_name("100..200");
  AddWhichOptions(app, &options->scope.which);
  app.add_flag("-v,--verbose", options->each, "a line for each graph and shape of a probe");
  return options;
}

}  // namespace

RunFunction AddInfo(CLI::App& app) {
  auto options = AddOptions(app);
  return [options](Context& context) { return RunInfo(context, *options); };
}

RunFunction AddStats(CLI::App& app) {
  auto options = AddOptions(app);
  return [options](Context& context) { return RunStats(context, *options); };
}

}  // namespace cgdebug::cli
