#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "client/analysis/ranks/missing.h"
#include "client/analysis/ranks/oddities.h"
#include "client/analysis/ranks/rank_rows.h"
#include "client/analysis/ranks/ranks_state.h"
#include "client/analysis/ranks/voting.h"

namespace cgdebug::analysis {
namespace {

ReplicaKey WithoutPlace(ReplicaKey key) {
  key.nth = 0;
  return key;
}

// Captures without a label that are alike are told apart by their order alone. If a rank has
// fewer of them than another, which is which is not known.
std::set<ReplicaKey> FindUnclear(const RankState& state, MissingReplicas* missing) {
  std::map<ReplicaKey, std::set<std::vector<std::size_t>>> processes;
  for (const auto& [key, replica] : state.replicas) {
    processes[WithoutPlace(key)].insert(replica.processes.Members());
  }
  std::set<ReplicaKey> unclear;
  std::string first;
  for (const auto& [key, sets] : processes) {
    if (sets.size() < 2) continue;
    if (unclear.empty()) first = key.Name();
    unclear.insert(key);
  }
  if (!unclear.empty()) {
    missing->Miss(fmt::format(
        "{}{} {} captured more often on some ranks than on others, and which capture "
        "is which is not known: name the graphs with cgdebug.graph_label",
        first, unclear.size() > 1 ? fmt::format(" and {} more replicas", unclear.size() - 1) : "",
        unclear.size() > 1 ? "are" : "is"));
  }
  return unclear;
}

void NoteParts(const RankState& state, const std::set<std::size_t>& compared, RanksReport* report) {
  std::size_t number = 0, count = 0;
  for (const auto& [key, replica] : state.replicas) {
    if (compared.contains(number++) && replica.is_part) ++count;
  }
  if (count == 0) return;
  report->notes.push_back(fmt::format("of {} of {} replicas only a part was recorded, and compared",
                                      count, compared.size()));
}

}  // namespace

RanksReport JudgeRanks(const RankState& state, const RanksOptions& options,
                       const AreWithin& are_within) {
  RanksReport report;
  const RankRows rows(state, &report);
  MissingReplicas missing(state, options, rows, &report);
  Voting voting(options, are_within, rows, &missing, &report);
  const std::set<ReplicaKey> unclear = FindUnclear(state, &missing);
  std::map<Attempt, std::vector<Cell>> attempts;
  std::size_t number = 0;
  for (const auto& [key, replica] : state.replicas) {
    for (const auto& [position, vote] : replica.votes) {
      if (unclear.contains(WithoutPlace(key))) break;
      attempts[key.attempt].push_back({position, &key, &replica, &vote, number});
      report.by_step = report.by_step || position.is_step;
    }
    ++number;
  }
  for (auto& [attempt, cells] : attempts) {
    std::ranges::sort(cells, {}, [](const Cell& cell) {
      return std::tuple(cell.position, cell.replica->order, cell.number);
    });
    voting.Judge(cells);
  }
  report.replicas = voting.compared().size();
  NoteParts(state, voting.compared(), &report);
  voting.Finish();
  missing.Tell();
  AddOddities(state, options, rows, &report);
  return report;
}

}  // namespace cgdebug::analysis
