#include "client/analysis/ranks/voting.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace cgdebug::analysis {
namespace {

constexpr std::size_t kMostTold = 8;

}  // namespace

void Voting::Judge(const std::vector<Cell>& cells) {
  replicas::AttemptJudge judge({options_.tolerance, options_.bitwise},
                               [this](std::size_t process) { return rows_.RowOf(process); });
  for (const Cell& cell : cells) {
    missing_.Note(cell);
    if (cell.vote->processes().Count() < 2) continue;
    ++report_.compared;
    compared_.insert(cell.number);
    for (const std::size_t row : rows_.RowsOf(cell.vote->processes())) ++report_.rows[row].compared;
    std::optional<replicas::Difference> unequal = judge.Take(
        cell.number, cell.replica->dtype, cell.position, *cell.vote,
        [&] { return are_within_(*cell.key, cell.position, cell.vote->processes().Members()); });
    if (!unequal) {
      if (cell.vote->lacks_hash()) ++report_.without_hash;
      continue;
    }
    ++report_.unequal;
    ReplicaDifference difference{*std::move(unequal), cell.key->Name(), cell.key->type,
                                 cell.replica->order};
    MarkRows(cell, difference);
    const bool is_unknown =
        !difference.is_finding && difference.distance == replicas::Distance::kUnknown;
    report_.unknown += is_unknown;
    std::optional<ReplicaDifference>& first = difference.is_finding ? report_.first
                                              : is_unknown          ? report_.first_unknown
                                                                    : report_.first_close;
    const auto place = [](const ReplicaDifference& one) {
      return std::tuple(one.position, one.order);
    };
    if (!first || place(difference) < place(*first)) first = std::move(difference);
  }
}

void Voting::MarkRows(const Cell& cell, const ReplicaDifference& difference) {
  const std::vector<std::size_t> rows =
      difference.has_majority ? difference.Minority() : rows_.RowsOf(cell.vote->processes());
  RankPlace place{
      .position = cell.position, .order = cell.replica->order, .probe = cell.key->Name()};
  for (const std::size_t at : rows) {
    RankRow& row = report_.rows[at];
    if (!row.first_unequal) row.first_unequal = place;
    if (!difference.is_finding) {
      if (difference.distance == replicas::Distance::kUnknown) unknown_.insert(at);
      const std::optional<RankPlace>& told = row.process.first_told;
      const bool is_told =
          told && told->position == cell.position && told->probe.starts_with(cell.key->probe);
      if (is_told) told_close_.insert(at);
      continue;
    }
    if (!row.first_different) row.first_different = place;
    (difference.has_majority ? differs_ : ties_).insert(at);
  }
}

void Voting::Finish() {
  SetVerdicts();
  FindFirstBad();
  AddTold();
}

void Voting::SetVerdicts() {
  for (std::size_t at = 0; at < report_.rows.size(); ++at) {
    RankRow& row = report_.rows[at];
    if (differs_.contains(at)) {
      row.verdict = ReplicaVerdict::kDifferent;
    } else if (ties_.contains(at)) {
      row.verdict = ReplicaVerdict::kTie;
    } else if (row.missing > 0) {
      row.verdict = ReplicaVerdict::kIncomplete;
    } else if (unknown_.contains(at)) {
      row.verdict = ReplicaVerdict::kUnknown;
    } else if (row.first_unequal) {
      row.verdict = ReplicaVerdict::kClose;
    } else if (row.compared > 0) {
      row.verdict = ReplicaVerdict::kSame;
    }
  }
}

void Voting::FindFirstBad() {
  std::optional<std::tuple<Position, std::uint64_t>> first;
  for (std::size_t at = 0; at < report_.rows.size(); ++at) {
    const RankRow& row = report_.rows[at];
    for (const std::optional<RankPlace>* place :
         {differs_.contains(at) ? &row.first_different : nullptr, &row.process.first_nonfinite}) {
      if (place == nullptr || !*place) continue;
      const std::tuple moment((*place)->position, (*place)->order);
      if (first && *first < moment) continue;
      if (first == moment) {
        const bool is_told =
            report_.first_bad == at || std::ranges::count(report_.bad_beside, at) > 0;
        if (!is_told) report_.bad_beside.push_back(at);
        continue;
      }
      first = moment;
      report_.first_bad = at;
      report_.bad_beside.clear();
    }
  }
}

// The daemon compared all snapshots; those that are here may be fewer.
void Voting::AddTold() {
  // The user allows more than the daemon did.
  const bool is_lenient = options_.tolerance > replicas::JudgeOptions{}.tolerance;
  for (std::size_t at = 0; at < report_.rows.size(); ++at) {
    const RankRow& row = report_.rows[at];
    const std::optional<RankPlace>& told = row.process.first_told;
    const bool is_here = row.first_different || (report_.first && !report_.first->has_majority) ||
                         (is_lenient && told_close_.contains(at));
    if (!told || is_here || report_.told.size() >= kMostTold) continue;
    report_.told.push_back(fmt::format("{}: {} at {}: {}", RankText(row), told->probe,
                                       PositionText(told->position), row.process.told));
  }
}

}  // namespace cgdebug::analysis
