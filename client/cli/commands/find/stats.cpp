
#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "client/analysis/check/check_report.h"
#include "client/analysis/diff/align.h"
#include "client/analysis/ranks/ranks_report.h"
#include "client/analysis/source_rows.h"
#include "client/cli/sources/overview.h"
#include "client/cli/views/stats_table.h"

namespace cgdebug::cli {
namespace {

// On which ranks there was NaN or Inf.
Result<std::map<int, bool>> NonfiniteRanks(source::Source& source, const analysis::Scope& scope) {
  const Result<std::vector<analysis::SourceRow>> rows = analysis::RowsOf(source, scope);
  if (!rows.ok()) return rows.error();
  std::map<int, bool> ranks;
  for (const analysis::SourceRow& row : *rows) ranks[source.slots()[row.slot].rank] = false;
  for (const analysis::SourceRow& row : *rows) {
    bool& is_bad = ranks[source.slots()[row.slot].rank];
    // The statistics of a rank that is known to be bad say nothing new.
    if (!is_bad) is_bad = analysis::TotalsOf(source, row).nonfinite_snapshots > 0;
  }
  return ranks;
}

// What differs between the ranks, in lines. Empty for a single rank.
Result<std::string> RanksText(source::Source& source, const analysis::Scope& scope) {
  std::set<int> there;
  for (const source::Slot& slot : source.slots()) {
    if (scope.Wants(slot)) there.insert(slot.rank);
  }
  if (there.size() < 2) return std::string();  // the lines of its probes say it
  const Result<std::map<int, bool>> ranks = NonfiniteRanks(source, scope);
  if (!ranks.ok()) return ranks.error();
  const auto is_bad = [](const auto& rank) { return rank.second; };
  std::string text;
  if (std::ranges::any_of(*ranks, is_bad)) {
    text = analysis::ByRankText(*ranks, "NaN or Inf on", "none seen on");
  }
  const Result<std::optional<analysis::RanksReport>> report = analysis::CompareRanks(source, scope);
  if (!report.ok()) return report.error();
  if (*report) text += analysis::RanksAnswer(**report, {.scope = scope}).Text() + "\n";
  return text;
}

Result<Json> RanksJson(source::Source& source, const analysis::Scope& scope) {
  const Result<std::map<int, bool>> ranks = NonfiniteRanks(source, scope);
  if (!ranks.ok()) return ranks.error();
  const Result<std::optional<analysis::RanksReport>> report = analysis::CompareRanks(source, scope);
  if (!report.ok()) return report.error();
  Json nonfinite = Json::array();
  for (const auto& [rank, is_bad] : *ranks) {
    if (is_bad && rank >= 0) nonfinite.push_back(rank);
  }
  return Json{{"nonfinite", std::move(nonfinite)},
              {"replicas", *report ? analysis::RanksJson(**report, {.scope = scope}) : Json()}};
}

int RunStats(Context& context, const OverviewOptions& options, const StatsView& view) {
  std::unique_ptr<source::Source> source;
  analysis::Scope scope;
  if (const int failed = OpenOverview(context, options, &source, &scope)) return failed;
  SayUnread(context, *source);
  if (!context.options.json) {
    const Result<TextTable> table =
        StatsTable(*source, scope, context.out, IsWhole(options, scope), view);
    const bool is_empty = table.ok() && table->empty();  // only with --only
    if (is_empty) context.Say("no probe saw NaN or Inf in what was read");
    const int failed = is_empty ? kExitOk : PrintTable(context, table);
    const analysis::GapSummary gaps = GapsIn(*source, scope);
    if (gaps.count > 0 && !gaps.sentences.empty()) SayNotAll(context, gaps);
    Context::Print(PrintableLines(RanksHere(*source)));
    const Result<std::string> between = RanksText(*source, scope);
    if (!between.ok()) return context.Fail(kExitTrouble, between.error().message);
    Context::Print(PrintableLines(*between));
    return failed != kExitOk ? failed : ExitCodeOf(gaps);
  }
  Result<Json> probes = StatsJson(*source, scope, view);
  if (!probes.ok()) return context.Fail(kExitTrouble, probes.error().message);
  const analysis::GapSummary gaps = GapsIn(*source, scope);
  Result<Json> ranks = RanksJson(*source, scope);
  if (!ranks.ok()) return context.Fail(kExitTrouble, ranks.error().message);
  Context::PrintJson({{"probes", *std::move(probes)},
                      {"ranks", *std::move(ranks)},
                      {"complete", gaps.count == 0 && gaps.goes_on.empty()},
                      {"missing", gaps.sentences},
                      {"account", analysis::AccountJson(gaps.account)}});
  return ExitCodeOf(gaps);
}

}  // namespace

RunFunction AddStats(CLI::App& app) {
  static const std::map<std::string, StatsOrder> kOrders = {{"order", StatsOrder::kGraph},
                                                            {"name", StatsOrder::kName},
                                                            {"abs_max", StatsOrder::kAbsMax},
                                                            {"nonfinite", StatsOrder::kNonfinite},
                                                            {"missing", StatsOrder::kMissing}};
  auto options = AddOverviewOptions(app);
  auto sort = std::make_shared<std::string>("order");
  app.add_option("--sort", *sort,
                 "order: as in the graph; abs_max, nonfinite, missing: largest first")
      ->check(CLI::IsMember({"order", "name", "abs_max", "nonfinite", "missing"}))
      ->type_name("{order,name,abs_max,nonfinite,missing}");
  auto only = std::make_shared<std::string>();
  app.add_option("--only", *only, "nan: only probes that saw NaN or Inf in the replays shown")
      ->check(CLI::IsMember({"nan"}))
      ->type_name("{nan}");
  return [options, sort, only](Context& context) {
    return RunStats(context, *options,
                    {.order = kOrders.at(*sort), .only_nonfinite = !only->empty()});
  };
}

}  // namespace cgdebug::cli
