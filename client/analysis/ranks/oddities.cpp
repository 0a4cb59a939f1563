#include "client/analysis/ranks/oddities.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cgdebug::analysis {
namespace {

constexpr std::size_t kMostOddities = 8;
constexpr double kOddClockSeconds = 10;

void AddHistory(const RankRows& rows, RanksReport* report) {
  std::map<std::string, std::set<std::size_t>> of_path;
  for (std::size_t at = 0; at < report->rows.size(); ++at) {
    for (const auto& [path, lost] : report->rows[at].process.lost) of_path[path].insert(at);
  }
  std::size_t shared = 0;
  for (const auto& [path, places] : of_path) {
    std::set<std::uint64_t> ranks;
    for (const std::size_t at : places) {
      const int rank = report->rows[at].process.rank;
      if (rank >= 0) ranks.insert(static_cast<std::uint64_t>(rank));
    }
    if (ranks.size() < 2 || of_path.size() < 2 || shared++ >= kMostOddities) continue;
    report->notes.push_back(
        fmt::format("{} holds ranks {}", path, RangesText({ranks.begin(), ranks.end()})));
  }
  for (const auto& [run, restart] : rows.last_restart()) {
    if (restart == 0) continue;
    report->notes.push_back(fmt::format(
        "the run{} was restarted {}: ranks are compared between two restarts, never over one",
        run.empty() ? "" : " " + run, restart == 1 ? "once" : fmt::format("{} times", restart)));
  }
  if (rows.last_restart().size() > 1) {
    report->notes.push_back(fmt::format("there are {} runs here: ranks are compared within each",
                                        rows.last_restart().size()));
  }
  for (const auto& [attempt, ranks] : rows.attempts()) {
    for (const auto& [rank, places] : ranks) {
      if (places.size() < 2) continue;
      report->notes.push_back(fmt::format(
          "rank {} has {} processes: each is compared with the other ranks", rank, places.size()));
    }
  }
}

// Ranks whose graphs differ, as those of a pipeline and of experts, have probes of their own.
void AddProbes(const RankState& state, const RankRows& rows, RanksReport* report) {
  std::set<std::uint64_t> all;
  for (const RankRow& row : report->rows) {
    if (row.process.rank >= 0) all.insert(static_cast<std::uint64_t>(row.process.rank));
  }
  std::map<std::vector<std::uint64_t>, std::vector<std::string>> of_ranks;
  for (const auto& [probe, processes] : state.probes) {
    std::set<std::uint64_t> ranks;
    for (const std::size_t row : rows.RowsOf(processes)) {
      const int rank = report->rows[row].process.rank;
      if (rank >= 0) ranks.insert(static_cast<std::uint64_t>(rank));
    }
    if (ranks.empty() || ranks == all) continue;
    of_ranks[{ranks.begin(), ranks.end()}].push_back(probe);
  }
  std::size_t told = 0;
  for (const auto& [ranks, probes] : of_ranks) {
    if (told++ >= kMostOddities) {
      report->notes.push_back(fmt::format("and {} more groups of ranks with probes of their own",
                                          of_ranks.size() - kMostOddities));
      break;
    }
    report->notes.push_back(fmt::format(
        "on rank{} {} only: {}{}", ranks.size() == 1 ? "" : "s", RangesText(ranks), probes.front(),
        probes.size() == 1 ? ""
                           : fmt::format(" and {} more probe{}", probes.size() - 1,
                                         probes.size() == 2 ? "" : "s")));
  }
}

// Ranks that take a step together cannot be seconds apart in it.
void AddClocks(const RankRows& rows, RanksReport* report) {
  for (const auto& of_attempt : rows.attempts()) {
    const auto& ranks = of_attempt.second;
    using Moment = std::pair<Position, std::string>;  // and the probe
    std::map<Moment, std::vector<std::int64_t>> firsts, lasts;
    const auto each = [&](const auto& use) {
      for (const auto& [rank, places] : ranks) {
        for (const std::size_t at : places) use(report->rows[at]);
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
      if (std::fabs(row.clock_offset_s) < kOddClockSeconds || told++ >= kMostOddities) return;
      report->notes.push_back(fmt::format(
          "the clock of {}{} is {:.0f} s {} those of most ranks, or it lags by as much: ranks are "
          "paired by {}, never by time",
          RankText(row), row.process.host.empty() ? "" : " on " + row.process.host,
          std::fabs(row.clock_offset_s), row.clock_offset_s > 0 ? "ahead of" : "behind",
          report->by_step              ? "step"
          : row.process.first->is_call ? "call"
                                       : "replay"));
    });
  }
}

void AddBehind(RanksReport* report) {
  std::set<std::uint64_t> ranks;
  for (const RankRow& row : report->rows) {
    if (row.behind > 0) ranks.insert(static_cast<std::uint64_t>(row.process.rank));
  }
  if (ranks.empty()) return;
  report->notes.push_back(
      fmt::format("rank{} {} {} behind: what {} not reached yet is not compared there",
                  ranks.size() == 1 ? "" : "s", RangesText({ranks.begin(), ranks.end()}),
                  ranks.size() == 1 ? "is" : "are", ranks.size() == 1 ? "it has" : "they have"));
}

void AddMasks(const RankState& state, const RanksOptions& options, RanksReport* report) {
  if (state.masks.empty()) return;
  std::uint64_t count = 0;
  for (const auto& [path, of_path] : state.masks) count += of_path;
  report->notes.push_back(
      fmt::format("{} row{} of op logs hold{} -Inf, maybe on purpose as a mask does, and {} no "
                  "finding. To list them, type: cgdebug-cli check {}",
                  count, count == 1 ? "" : "s", count == 1 ? "s" : "", count == 1 ? "is" : "are",
                  options.typed.empty() ? state.masks.begin()->first : options.typed));
}

}  // namespace

void AddOddities(const RankState& state, const RanksOptions& options, const RankRows& rows,
                 RanksReport* report) {
  AddHistory(rows, report);
  AddProbes(state, rows, report);
  AddClocks(rows, report);
  AddBehind(report);
  AddMasks(state, options, report);
}

}  // namespace cgdebug::analysis
