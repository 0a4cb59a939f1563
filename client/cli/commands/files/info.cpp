#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>

#include "client/analysis/check/check_report.h"
#include "client/cli/sources/overview.h"
#include "client/cli/views/source_table.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kMaxMissingLines = 8;
constexpr const char* kValuesUnread = "values were not read: cgdebug-cli verify does";

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

std::string Completeness(const analysis::GapSummary& gaps, bool is_live, const Style& style) {
  const std::string account = ToText(gaps.account);
  if (gaps.count == 0) {
    const char* words =
        gaps.goes_on.empty() ? "nothing is known to be missing" : "nothing is missing so far";
    const std::string unread = is_live ? "" : std::string("; ") + kValuesUnread;
    return style.Green(words) + fmt::format(" ({}){}\n", account, unread) +
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

int RunInfo(Context& context, const OverviewOptions& options) {
  std::unique_ptr<source::Source> source;
  analysis::Scope scope;
  if (const int failed = OpenOverview(context, options, &source, &scope)) return failed;
  const analysis::GapSummary gaps = GapsIn(*source, scope);
  if (context.options.json) {
    const source::Description about = source->Describe();
    Result<Json> probes = SlotsJson(*source, scope);
    if (!probes.ok()) return context.Fail(kExitTrouble, probes.error().message);
    Context::PrintJson({{"path", about.path},
                        {"kind", about.kind},
                        {"bytes", about.bytes},
                        {"ending", about.ending},
                        {"sessions", about.sessions},
                        {"complete", gaps.count == 0 && gaps.goes_on.empty()},
                        {"values_read", false},
                        {"goes_on", !gaps.goes_on.empty()},
                        {"account", analysis::AccountJson(gaps.account)},
                        {"missing", gaps.sentences},
                        {"probes", *std::move(probes)}});
    return ExitCodeOf(gaps);
  }
  Context::Print(Head(*source, context.out));
  const Result<TextTable> table = SlotTable(*source, scope, context.out, IsWhole(options, scope));
  if (const int failed = PrintTable(context, table)) return failed;
  Context::Print(Completeness(gaps, source->Describe().kind == "live", context.out) +
                 PrintableLines(RanksHere(*source)));
  return ExitCodeOf(gaps);
}

}  // namespace

RunFunction AddInfo(CLI::App& app) {
  auto options = AddOverviewOptions(app);
  return [options](Context& context) { return RunInfo(context, *options); };
}

}  // namespace cgdebug::cli
