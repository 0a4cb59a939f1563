#include "client/analysis/ranks/rank_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace cgdebug::analysis {

RankRows::RankRows(const RankState& state, RanksReport* report) {
  std::vector<std::size_t> order(state.processes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](std::size_t i) {
    const RankProcess& process = state.processes[i];
    return std::tie(process.run, process.restart, process.rank, process.uuid);
  });
  row_of_.resize(order.size());
  for (const std::size_t i : order) {
    const RankProcess& process = state.processes[i];
    row_of_[i] = report->rows.size();
    RankRow& row = report->rows.emplace_back();
    row.process = process;
    for (const auto& [path, lost] : process.lost) row.lost += lost;
    report->snapshots += process.snapshots;
    report->goes_on = report->goes_on || process.is_growing;
    if (process.rank < 0) continue;
    attempts_[{process.run, process.restart}][process.rank].push_back(row_of_[i]);
    int& last = last_restart_.try_emplace(process.run, process.restart).first->second;
    last = std::max(last, process.restart);
  }
  for (RankRow& row : report->rows) {
    row.is_superseded =
        row.process.rank >= 0 && row.process.restart < last_restart_[row.process.run];
  }
}

std::vector<std::size_t> RankRows::RowsOf(const Bits& processes) const {
  std::vector<std::size_t> rows;
  for (const std::size_t process : processes.Members()) rows.push_back(row_of_[process]);
  std::ranges::sort(rows);
  return rows;
}

const RankRows::OfRank& RankRows::Of(const Attempt& attempt) const {
  static const OfRank kNone;
  const auto found = attempts_.find(attempt);
  return found == attempts_.end() ? kNone : found->second;
}

std::string RankText(const RankRow& row) {
  return row.process.restart == 0
             ? fmt::format("rank {}", row.process.rank)
             : fmt::format("rank {} (restart {})", row.process.rank, row.process.restart);
}

}  // namespace cgdebug::analysis
