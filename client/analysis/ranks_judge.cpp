#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "client/analysis/ranks_state.h"
#include "daemon/core/replicas/shard_text.h"

namespace cgdebug::analysis {
namespace {

constexpr std::size_t kMostSentences = 8;
constexpr double kOddClockSeconds = 10;
constexpr int kMostRanks = 1 << 20;  // what a job says of its size may be wrong

std::string RankText(const RankRow& row) {
  return row.process.restart == 0
             ? fmt::format("rank {}", row.process.rank)
             : fmt::format("rank {} (restart {})", row.process.rank, row.process.restart);
}

// One replica at one position.
struct Cell {
  Position position;
  const ReplicaKey* key;
  const Replica* replica;
  const Vote* vote;
  std::size_t number;  // of the replica
};

layout::Dtype DtypeOf(const ReplicaKey& key) {
  const layout::DtypeInfo* info =
      layout::FindDtype(std::string_view(key.type).substr(0, key.type.find('[')));
  return info == nullptr ? layout::Dtype::kInvalid : info->dtype;
}

class Judge {
 public:
  Judge(const RankState& state, const RanksOptions& options, const AreWithin& are_within)
      : state_(state), options_(options), are_within_(are_within) {}

  RanksReport Run() {
    MakeRows();
    std::map<Attempt, std::vector<Cell>> attempts;
    std::size_t number = 0;
    const std::set<ReplicaKey> unclear = FindUnclear();
    for (const auto& [key, replica] : state_.replicas) {
      for (const auto& [position, vote] : replica.votes) {
        if (unclear.contains(WithoutPlace(key))) break;
        attempts[key.attempt].push_back({position, &key, &replica, &vote, number});
        report_.by_step = report_.by_step || position.is_step;
      }
      ++number;
    }
    for (auto& [attempt, cells] : attempts) {
      std::ranges::sort(cells, {}, [](const Cell& cell) {
        return std::tuple(cell.position, cell.replica->order, cell.number);
      });
      JudgeAttempt(cells);
    }
    report_.replicas = compared_.size();
    NoteParts();
    SetVerdicts();
    FindFirstBad();
    TellTold();
    TellMissing();
    TellOdd();
    TellBehind();
    TellMasks();
    return std::move(report_);
  }

 private:
  void MakeRows() {
    std::vector<std::size_t> order(state_.processes.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](std::size_t i) {
      const RankProcess& process = state_.processes[i];
      return std::tie(process.run, process.restart, process.rank, process.uuid);
    });
    row_of_.resize(order.size());
    for (const std::size_t i : order) {
      const RankProcess& process = state_.processes[i];
      row_of_[i] = report_.rows.size();
      RankRow& row = report_.rows.emplace_back();
      row.process = process;
      for (const auto& [path, lost] : process.lost) row.lost += lost;
      report_.snapshots += process.snapshots;
      report_.goes_on = report_.goes_on || process.is_growing;
      if (process.rank < 0) continue;
      rows_of_[{process.run, process.restart}][process.rank].push_back(row_of_[i]);
      int& last = last_restart_.try_emplace(process.run, process.restart).first->second;
      last = std::max(last, process.restart);
    }
    for (RankRow& row : report_.rows) {
      row.is_superseded =
          row.process.rank >= 0 && row.process.restart < last_restart_[row.process.run];
    }
  }

  void NoteParts() {
    std::size_t number = 0, count = 0;
    for (const auto& [key, replica] : state_.replicas) {
      if (compared_.contains(number++) && key.type.find(" part ") != std::string::npos) ++count;
    }
    if (count == 0) return;
    report_.notes.push_back(fmt::format(
        "of {} of {} replicas only a part was recorded, and compared", count, compared_.size()));
  }

  static ReplicaKey WithoutPlace(ReplicaKey key) {
    key.nth = 0;
    return key;
  }

  // Captures without a label that are alike are told apart by their order alone. If a rank has
  // fewer of them than another, which is which is not known.
  std::set<ReplicaKey> FindUnclear() {
    std::map<ReplicaKey, std::set<std::vector<std::size_t>>> processes;
    for (const auto& [key, replica] : state_.replicas) {
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
      Miss(fmt::format(
          "{}{} {} captured more often on some ranks than on others, and which capture "
          "is which is not known: name the graphs with cgdebug.graph_label",
          first, unclear.size() > 1 ? fmt::format(" and {} more replicas", unclear.size() - 1) : "",
          unclear.size() > 1 ? "are" : "is"));
    }
    return unclear;
  }

  std::vector<std::size_t> RowsOf(const Bits& processes) const {
    std::vector<std::size_t> rows;
    for (const std::size_t process : processes.Members()) rows.push_back(row_of_[process]);
    std::ranges::sort(rows);
    return rows;
  }

  // --- one attempt ------------------------------------------------------------------------------

  void JudgeAttempt(const std::vector<Cell>& cells) {
    replicas::AttemptJudge judge({options_.tolerance, options_.bitwise},
                                 [this](std::size_t process) { return row_of_[process]; });
    for (const Cell& cell : cells) {
      NoteMissing(cell);
      if (cell.vote->processes().Count() < 2) continue;
      ++report_.compared;
      compared_.insert(cell.number);
      for (const std::size_t row : RowsOf(cell.vote->processes())) ++report_.rows[row].compared;
      std::optional<replicas::Difference> unequal = judge.Take(
          cell.number, DtypeOf(*cell.key), cell.position, *cell.vote,
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

  void MarkRows(const Cell& cell, const ReplicaDifference& difference) {
    const std::vector<std::size_t> rows =
        difference.has_majority ? difference.Minority() : RowsOf(cell.vote->processes());
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

  // --- what is missing --------------------------------------------------------------------------

  std::vector<std::size_t> RowsThatShouldHave(const Cell& cell) {
    const auto known = expected_.find(cell.number);
    if (known != expected_.end()) return known->second;
    std::vector<std::size_t> rows;
    const auto& of_attempt = rows_of_[cell.key->attempt];
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

  void NoteMissing(const Cell& cell) {
    const std::vector<std::size_t> expected = RowsThatShouldHave(cell);
    if (cell.vote->processes().Count() == expected.size()) return;
    const std::vector<std::size_t> present = RowsOf(cell.vote->processes());
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

  // Whether another process of the same rank has the snapshot.
  bool HasTwin(std::size_t at, const std::vector<std::size_t>& present) const {
    return std::ranges::any_of(present, [&](std::size_t other) {
      return report_.rows[other].process.rank == report_.rows[at].process.rank;
    });
  }

  void TellMissing() {
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
    TellAbsentRanks();
    std::size_t told = 0, untold = 0;
    for (const RankRow& row : report_.rows) {
      const RankProcess& process = row.process;
      std::vector<std::string> sentences;
      if (row.missing > 0) {
        const bool is_end = process.last && process.last->position < row.first_missing->position;
        sentences.push_back(fmt::format(
            "{} {} {} at {}{}", RankText(row),
            is_end ? "ends before the others, it has no" : "has no", row.first_missing->probe,
            PositionText(row.first_missing->position),
            row.missing > 1 ? fmt::format(" and {} more replicas", row.missing - 1) : ""));
      }
      if (row.lost > 0) {
        report_.missing_count += row.lost;
        sentences.push_back(fmt::format("{} lacks {} snapshot{}: lost, or no longer kept",
                                        RankText(row), row.lost, row.lost == 1 ? "" : "s"));
      }
      if (process.unread > 0) {
        report_.missing_count += process.unread;
        sentences.push_back(fmt::format("{} has {} snapshot{} that cannot be read, the first: {}",
                                        RankText(row), process.unread,
                                        process.unread == 1 ? "" : "s", process.first_unread));
      }
      if (process.repeated > 0) {
        report_.missing_count += process.repeated;
        sentences.push_back(fmt::format(
            "{} has {} snapshot{} of replicas at steps that it had before, which are not compared: "
            "choose replays in which each step comes once, for example: --replays 1..{}",
            RankText(row), process.repeated, process.repeated == 1 ? "" : "s",
            std::max<std::uint64_t>(process.first_repeated, 2) - 1));
      }
      if (process.is_cut_off && !row.is_superseded) {
        ++report_.missing_count;
        sentences.push_back(fmt::format(
            "the recording of {} was cut off: what came after is not in it", RankText(row)));
      }
      for (std::string& sentence : sentences) {
        if (told++ < kMostSentences) {
          report_.missing.push_back(std::move(sentence));
        } else {
          ++untold;
        }
      }
    }
    if (untold > 0) report_.missing.push_back(fmt::format("and {} more like these", untold));
    for (const auto& [probe, processes] : state_.unknown) {
      const std::size_t count = processes.Count();
      Miss(
          fmt::format("{} is a replica on {} rank{}, but on which others was cut off: name it with "
                      "--replicated",
                      probe, count, count == 1 ? "" : "s"));
    }
  }

  void TellAbsentRanks() {
    for (const auto& [attempt, ranks] : rows_of_) {
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
      const bool is_superseded = attempt.second < last_restart_[attempt.first];
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

  void Miss(std::string sentence) {
    ++report_.missing_count;
    report_.missing.push_back(std::move(sentence));
  }

  // --- what it comes to -------------------------------------------------------------------------

  void SetVerdicts() {
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

  void FindFirstBad() {
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
  void TellTold() {
    // The user allows more than the daemon did.
    const bool is_lenient = options_.tolerance > replicas::JudgeOptions{}.tolerance;
    for (std::size_t at = 0; at < report_.rows.size(); ++at) {
      const RankRow& row = report_.rows[at];
      const std::optional<RankPlace>& told = row.process.first_told;
      const bool is_here = row.first_different || (report_.first && !report_.first->has_majority) ||
                           (is_lenient && told_close_.contains(at));
      if (!told || is_here || report_.told.size() >= kMostSentences) continue;
      report_.told.push_back(fmt::format("{}: {} at {}: {}", RankText(row), told->probe,
                                         PositionText(told->position), row.process.told));
    }
  }

  void TellOdd() {
    std::map<std::string, std::set<std::size_t>> of_path;
    for (std::size_t at = 0; at < report_.rows.size(); ++at) {
      for (const auto& [path, lost] : report_.rows[at].process.lost) of_path[path].insert(at);
    }
    std::size_t shared = 0;
    for (const auto& [path, rows] : of_path) {
      std::set<std::uint64_t> ranks;
      for (const std::size_t at : rows) {
        const int rank = report_.rows[at].process.rank;
        if (rank >= 0) ranks.insert(static_cast<std::uint64_t>(rank));
      }
      if (ranks.size() < 2 || of_path.size() < 2 || shared++ >= kMostSentences) continue;
      report_.notes.push_back(
          fmt::format("{} holds ranks {}", path, RangesText({ranks.begin(), ranks.end()})));
    }
    for (const auto& [run, restart] : last_restart_) {
      if (restart == 0) continue;
      report_.notes.push_back(fmt::format(
          "the run{} was restarted {}: ranks are compared between two restarts, never over one",
          run.empty() ? "" : " " + run, restart == 1 ? "once" : fmt::format("{} times", restart)));
    }
    if (last_restart_.size() > 1) {
      report_.notes.push_back(fmt::format("there are {} runs here: ranks are compared within each",
                                          last_restart_.size()));
    }
    for (const auto& [attempt, ranks] : rows_of_) {
      for (const auto& [rank, rows] : ranks) {
        if (rows.size() < 2) continue;
        report_.notes.push_back(fmt::format(
            "rank {} has {} processes: each is compared with the other ranks", rank, rows.size()));
      }
    }
    TellProbes();
    TellClocks();
  }

  // Ranks whose graphs differ, as those of a pipeline and of experts, have probes of their own.
  void TellProbes() {
    std::set<std::uint64_t> all;
    for (const RankRow& row : report_.rows) {
      if (row.process.rank >= 0) all.insert(static_cast<std::uint64_t>(row.process.rank));
    }
    std::map<std::vector<std::uint64_t>, std::vector<std::string>> of_ranks;
    for (const auto& [probe, processes] : state_.probes) {
      std::set<std::uint64_t> ranks;
      for (const std::size_t row : RowsOf(processes)) {
        const int rank = report_.rows[row].process.rank;
        if (rank >= 0) ranks.insert(static_cast<std::uint64_t>(rank));
      }
      if (ranks.empty() || ranks == all) continue;
      of_ranks[{ranks.begin(), ranks.end()}].push_back(probe);
    }
    std::size_t told = 0;
    for (const auto& [ranks, probes] : of_ranks) {
      if (told++ >= kMostSentences) {
        report_.notes.push_back(fmt::format("and {} more groups of ranks with probes of their own",
                                            of_ranks.size() - kMostSentences));
        break;
      }
      report_.notes.push_back(
          fmt::format("on rank{} {} only: {}{}", ranks.size() == 1 ? "" : "s", RangesText(ranks),
                      probes.front(),
                      probes.size() == 1 ? ""
                                         : fmt::format(" and {} more probe{}", probes.size() - 1,
                                                       probes.size() == 2 ? "" : "s")));
    }
  }

  void TellBehind() {
    std::set<std::uint64_t> ranks;
    for (const RankRow& row : report_.rows) {
      if (row.behind > 0) ranks.insert(static_cast<std::uint64_t>(row.process.rank));
    }
    if (ranks.empty()) return;
    report_.notes.push_back(
        fmt::format("rank{} {} {} behind: what {} not reached yet is not compared there",
                    ranks.size() == 1 ? "" : "s", RangesText({ranks.begin(), ranks.end()}),
                    ranks.size() == 1 ? "is" : "are", ranks.size() == 1 ? "it has" : "they have"));
  }

  void TellMasks() {
    if (state_.masks.empty()) return;
    std::uint64_t count = 0;
    for (const auto& [path, of_path] : state_.masks) count += of_path;
    report_.notes.push_back(
        fmt::format("{} row{} of op logs hold{} -Inf, maybe on purpose as a mask does, and {} no "
                    "finding. To list them, type: cgdebug-cli check {}",
                    count, count == 1 ? "" : "s", count == 1 ? "s" : "", count == 1 ? "is" : "are",
                    options_.typed.empty() ? state_.masks.begin()->first : options_.typed));
  }

  // Ranks that take a step together cannot be seconds apart in it.
  void TellClocks() {
    for (const auto& of_attempt : rows_of_) {
      const auto& ranks = of_attempt.second;
      using Moment = std::pair<Position, std::string>;  // and the probe
      std::map<Moment, std::vector<std::int64_t>> firsts, lasts;
      const auto each = [&](const auto& use) {
        for (const auto& [rank, rows] : ranks) {
          for (const std::size_t at : rows) use(report_.rows[at]);
        }
      };
      each([&](const RankRow& row) {
        const auto note = [](const std::optional<RankPlace>& place, auto* of) {
          if (place && place->timestamp_ns != 0) {
            (*of)[{place->position, place->probe}].push_back(place->timestamp_ns);
          }
        };
        note(row.process.first, &firsts);
        note(row.process.last, &lasts);
      });
      for (auto* of : {&firsts, &lasts}) {
        for (auto& [moment, times] : *of) std::ranges::sort(times);
      }
      std::size_t told = 0;
      each([&](RankRow& row) {
        std::optional<double> offset;
        const auto measure = [&](const std::optional<RankPlace>& place, const auto& of) {
          if (!place || place->timestamp_ns == 0) return;
          const std::vector<std::int64_t>& times = of.at({place->position, place->probe});
          const std::int64_t most = times[(times.size() - 1) / 2];
          const double seconds = static_cast<double>(place->timestamp_ns - most) * 1e-9;
          if (!offset || std::fabs(seconds) < std::fabs(*offset)) offset = seconds;
        };
        measure(row.process.first, firsts);
        measure(row.process.last, lasts);
        row.clock_offset_s = offset.value_or(0);
        if (std::fabs(row.clock_offset_s) < kOddClockSeconds || told++ >= kMostSentences) return;
        report_.notes.push_back(fmt::format(
            "the clock of {}{} is {:.0f} s {} those of most ranks, or it lags by as much: ranks "
            "are "
            "paired by {}, never by time",
            RankText(row), row.process.host.empty() ? "" : " on " + row.process.host,
            std::fabs(row.clock_offset_s), row.clock_offset_s > 0 ? "ahead of" : "behind",
            report_.by_step ? "step" : "replay"));
      });
    }
  }

  const RankState& state_;
  const RanksOptions& options_;
  const AreWithin& are_within_;
  RanksReport report_;
  std::vector<std::size_t> row_of_;                                     // of each process
  std::map<Attempt, std::map<int, std::vector<std::size_t>>> rows_of_;  // by rank
  std::map<std::string, int> last_restart_;                             // by run
  std::map<std::size_t, std::vector<std::size_t>> expected_;            // rows, by replica
  std::set<std::size_t> compared_, differs_, ties_;                     // replicas; rows; rows
  std::set<std::size_t> unknown_;     // rows that differ by what is not known
  std::set<std::size_t> told_close_;  // rows: what the daemon told is here, and close
};

}  // namespace

RanksReport JudgeRanks(const RankState& state, const RanksOptions& options,
                       const AreWithin& are_within) {
  return Judge(state, options, are_within).Run();
}

}  // namespace cgdebug::analysis
