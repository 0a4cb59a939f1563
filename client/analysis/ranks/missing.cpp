#include "client/analysis/ranks/missing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "daemon/core/replicas/shard_text.h"

namespace cgdebug::analysis {
namespace {

constexpr std::size_t kMostMissing = 8;
constexpr int kMostRanks = 1 << 20;  // what a job says of its size may be wrong

}  // namespace

void MissingReplicas::Miss(std::string sentence) {
  ++report_.missing_count;
  report_.missing.push_back(std::move(sentence));
}

void MissingReplicas::Note(const Cell& cell) {
  const std::vector<std::size_t> expected = RowsThatShouldHave(cell);
  if (cell.vote->processes().Count() == expected.size()) return;
  const std::vector<std::size_t> present = rows_.RowsOf(cell.vote->processes());
  std::vector<std::size_t> missing;
  std::ranges::set_difference(expected, present, std::back_inserter(missing));
  for (const std::size_t at : missing) {
    RankRow& row = report_.rows[at];
    const bool is_behind = !row.process.last || row.process.last->position <= cell.position;
    // What a process that was restarted did not reach came after it.
    if (is_behind && row.is_superseded) continue;
    if (HasTwin(at, present)) continue;
    if (is_behind && row.process.is_growing) {
      ++row.behind;
      continue;
    }
    ++row.missing;
    ++report_.missing_count;
    if (row.first_missing) continue;
    row.first_missing = RankPlace{
        .position = cell.position, .order = cell.replica->order, .probe = cell.key->Name()};
  }
}

std::vector<std::size_t> MissingReplicas::RowsThatShouldHave(const Cell& cell) {
  const auto known = expected_.find(cell.number);
  if (known != expected_.end()) return known->second;
  std::vector<std::size_t> rows;
  const auto& of_attempt = rows_.Of(cell.key->attempt);
  const auto add = [&](int rank) {
    const auto of_rank = of_attempt.find(rank);
    if (of_rank == of_attempt.end()) return;
    rows.insert(rows.end(), of_rank->second.begin(), of_rank->second.end());
  };
  if (const auto ranks = replicas::ParseRanks(cell.key->ranks)) {
    for (const int rank : *ranks) add(rank);
  } else {  // it is on all of the run
    for (const auto& [rank, of_rank] : of_attempt) add(rank);
  }
  std::ranges::sort(rows);
  return expected_[cell.number] = rows;
}

// Whether another process of the same rank has the snapshot.
bool MissingReplicas::HasTwin(std::size_t at, const std::vector<std::size_t>& present) const {
  return std::ranges::any_of(present, [&](std::size_t other) {
    return report_.rows[other].process.rank == report_.rows[at].process.rank;
  });
}

void MissingReplicas::Tell() {
  TellOfSource();
  TellAbsentRanks();
  TellOfRanks();
  for (const auto& [probe, processes] : state_.unknown) {
    const std::size_t count = processes.Count();
    Miss(
        fmt::format("{} is a replica on {} rank{}, but on which others was cut off: name it with "
                    "--replicated",
                    probe, count, count == 1 ? "" : "s"));
  }
}

void MissingReplicas::TellOfSource() {
  if (report_.without_hash > 0) {
    Miss(
        fmt::format("{} of {} comparisons are of statistics without an ordered_hash, which are "
                    "the same for the same elements in any order: record again with this "
                    "version, with TensorStats(hash=True)",
                    report_.without_hash, report_.compared));
  }
  for (const std::string& why : state_.unreadable) Miss("not read: " + why);
  const auto is_named = [&](const auto& replica) {
    return options_.replicated.Matches(replica.first.probe);
  };
  if (options_.has_replicated && std::ranges::none_of(state_.replicas, is_named)) {
    const std::string typed = options_.typed.empty() ? "" : " " + options_.typed;
    Miss("no probe of any rank is named by --replicated. To list them, type: cgdebug-cli info" +
         typed);
  }
}

void MissingReplicas::TellOfRanks() {
  std::size_t told = 0, untold = 0;
  for (const RankRow& row : report_.rows) {
    const RankProcess& process = row.process;
    const bool is_cut_off = process.is_cut_off && !row.is_superseded;
    report_.missing_count +=
        row.lost + process.unread.count + process.repeated.count + (is_cut_off ? 1 : 0);
    for (std::string& sentence : SentencesOf(row)) {
      if (told++ < kMostMissing) {
        report_.missing.push_back(std::move(sentence));
      } else {
        ++untold;
      }
    }
  }
  if (untold > 0) report_.missing.push_back(fmt::format("and {} more like these", untold));
}

std::vector<std::string> MissingReplicas::SentencesOf(const RankRow& row) {
  const RankProcess& process = row.process;
  std::vector<std::string> sentences;
  if (row.missing > 0) {
    const bool is_end = process.last && process.last->position < row.first_missing->position;
    sentences.push_back(fmt::format(
        "{} {} {} at {}{}", RankText(row), is_end ? "ends before the others, it has no" : "has no",
        row.first_missing->probe, PositionText(row.first_missing->position),
        row.missing > 1 ? fmt::format(" and {} more replicas", row.missing - 1) : ""));
  }
  if (row.lost > 0) {
    sentences.push_back(fmt::format("{} lacks {} snapshot{}: lost, or no longer kept",
                                    RankText(row), row.lost, row.lost == 1 ? "" : "s"));
  }
  if (process.unread.count > 0) {
    sentences.push_back(fmt::format(
        "{} has {} snapshot{} that cannot be read, the first: {}", RankText(row),
        process.unread.count, process.unread.count == 1 ? "" : "s", process.unread.why_first));
  }
  if (process.repeated.count > 0) {
    sentences.push_back(fmt::format(
        "{} has {} snapshot{} of replicas at steps that it had before, which are not compared: "
        "choose replays in which each step comes once, for example: --replays 1..{}",
        RankText(row), process.repeated.count, process.repeated.count == 1 ? "" : "s",
        std::max<std::uint64_t>(process.repeated.first, 2) - 1));
  }
  if (process.is_cut_off && !row.is_superseded) {
    sentences.push_back(fmt::format("the recording of {} was cut off: what came after is not in it",
                                    RankText(row)));
  }
  return sentences;
}

void MissingReplicas::TellAbsentRanks() {
  for (const auto& [attempt, ranks] : rows_.attempts()) {
    int world_size = 1;
    for (const auto& [rank, rows] : ranks) {
      for (const std::size_t row : rows) {
        world_size = std::max(world_size, report_.rows[row].process.world_size);
      }
    }
    std::set<std::string_view> seen;
    for (const auto& [key, replica] : state_.replicas) {
      if (key.attempt != attempt || !seen.insert(key.ranks).second) continue;
      const auto named = replicas::ParseRanks(key.ranks);
      if (named) world_size = std::max(world_size, named->back() + 1);
    }
    world_size = std::min(world_size, kMostRanks);
    std::vector<std::uint64_t> absent;
    for (int rank = 0; rank < world_size; ++rank) {
      const auto& wants = options_.scope.wants_rank;
      if (!ranks.contains(rank) && (!wants || wants(rank))) {
        absent.push_back(static_cast<std::uint64_t>(rank));
      }
    }
    if (absent.empty()) continue;
    const bool is_superseded = attempt.second < rows_.last_restart().at(attempt.first);
    const std::string sentence =
        fmt::format("rank{} {} of {} {} not here{}", absent.size() == 1 ? "" : "s",
                    RangesText(absent), world_size, absent.size() == 1 ? "is" : "are",
                    is_superseded ? fmt::format(" before restart {}", attempt.second + 1) : "");
    if (is_superseded) {
      report_.notes.push_back(sentence);
      continue;
    }
    report_.missing_count += absent.size();
    report_.missing.push_back(sentence);
  }
}

}  // namespace cgdebug::analysis
