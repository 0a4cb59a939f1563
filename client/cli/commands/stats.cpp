#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "client/analysis/check_report.h"
#include "client/analysis/gaps.h"
#include "client/cli/commands/overview.h"
#include "client/cli/views/stats_table.h"

namespace cgdebug::cli {
namespace {

int RunStats(Context& context, const OverviewOptions& options, const StatsView& view) {
  std::unique_ptr<source::Source> source;
  analysis::Scope scope;
  if (const int failed = OpenOverview(context, options, &source, &scope); failed != kExitOk)
    return failed;
  SayUnread(context, *source);
  if (!context.options.json) {
    const Result<TextTable> table =
        StatsTable(*source, scope, context.out, IsWhole(context, options, scope), view);
    const bool is_empty = table.ok() && table->empty();  // only with --nonfinite
    if (is_empty) context.Say("no probe saw NaN or Inf in what was read");
    const int failed = is_empty ? kExitOk : PrintTable(context, table);
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
  Result<Json> probes = StatsJson(*source, scope, view);
  if (!probes.ok()) return context.Fail(kExitTrouble, probes.error().message);
  analysis::GapSummary gaps = analysis::SummarizeGaps(*source, scope);
  analysis::AddUnreadable(*source, scope, &gaps);
  Context::PrintJson({{"probes", *std::move(probes)},
                      {"complete", gaps.count == 0 && gaps.goes_on.empty()},
                      {"missing", gaps.sentences},
                      {"account", analysis::AccountJson(gaps.account)}});
  return kExitOk;
}

}  // namespace

RunFunction AddStats(CLI::App& app) {
  static const std::map<std::string, StatsOrder> kOrders = {{"order", StatsOrder::kGraph},
                                                            {"name", StatsOrder::kName},
                                                            {"abs_max", StatsOrder::kAbsMax},
                                                            {"nonfinite", StatsOrder::kNonfinite},
                                                            {"lost", StatsOrder::kLost}};
  auto options = AddOverviewOptions(app);
  auto sort = std::make_shared<std::string>("order");
  app.add_option("--sort", *sort, "order: as in the graph; abs_max, nonfinite, lost: largest first")
      ->check(CLI::IsMember({"order", "name", "abs_max", "nonfinite", "lost"}))
      ->type_name("{order,name,abs_max,nonfinite,lost}");
  auto only_nonfinite = std::make_shared<bool>(false);
  app.add_flag("--nonfinite", *only_nonfinite,
               "only probes that saw NaN or Inf in the replays shown");
  return [options, sort, only_nonfinite](Context& context) {
    return RunStats(context, *options,
                    {.order = kOrders.at(*sort), .only_nonfinite = *only_nonfinite});
  };
}

}  // namespace cgdebug::cli
