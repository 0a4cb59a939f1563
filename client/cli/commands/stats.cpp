#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/analysis/check_report.h"
#include "client/analysis/gaps.h"
#include "client/cli/commands/overview.h"
#include "client/cli/views/source_table.h"

namespace cgdebug::cli {
namespace {

int RunStats(Context& context, const OverviewOptions& options) {
  std::unique_ptr<source::Source> source;
  analysis::Scope scope;
  if (const int failed = OpenOverview(context, options, &source, &scope); failed != kExitOk)
    return failed;
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

}  // namespace

RunFunction AddStats(CLI::App& app) {
  auto options = AddOverviewOptions(app);
  return [options](Context& context) { return RunStats(context, *options); };
}

}  // namespace cgdebug::cli
