// Ranks of a run that take unlike ways: other graphs in their n-th replay, or other collectives in
// the same call.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {
namespace {

// One thing that a rank does and the others must do, too.
struct Deed {
  std::string text;  // what the other ranks must have as well
  Place place;
};
// By call, or by the n-th replay of the process; for each, in order.
using Way = std::map<std::uint64_t, std::vector<Deed>>;

struct RankWays {
  std::map<int, Way> calls;    // by rank: their collectives
  std::map<int, Way> replays;  // likewise: their graphs
};

void AddCalls(const Evidence& evidence, std::size_t log_place, Way* way) {
  const Log& log = evidence.logs[log_place];
  for (std::size_t run = 0; run < log.runs.size(); ++run) {
    std::vector<Deed>& deeds = (*way)[log.runs[run].replay];
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      if (!row.at[run].is_here || !ops::IsCollective(row.op)) continue;
      deeds.push_back({fmt::format("{} of {}", row.op, TypeText(evidence.SlotOf(row))),
                       PlaceAt(evidence, log_place, place, run)});
    }
  }
}

// The n-th replay is only known where none is missing.
void AddReplays(const Evidence& evidence, const std::vector<std::size_t>& logs, Way* way) {
  using At = std::tuple<std::uint64_t, std::size_t, std::size_t>;  // serial, log, run
  std::vector<At> order;
  for (const std::size_t log : logs) {
    const std::vector<Run>& runs = evidence.logs[log].runs;
    for (std::size_t run = 0; run < runs.size(); ++run) {
      if (runs[run].replay != run + 1) return;
      order.emplace_back(runs[run].serial, log, run);
    }
  }
  std::ranges::sort(order);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto& [serial, log, run] = order[i];
    (*way)[i + 1] = {{"graph " + evidence.logs[log].graph, PlaceAt(evidence, log, 0, run)}};
  }
}

// Whether each rank has a call or replay that the first one has, too.
bool HaveOneInCommon(const std::map<int, Way>& ways) {
  const Way& first = ways.begin()->second;
  return std::ranges::all_of(ways, [&](const auto& one) {
    return std::ranges::any_of(one.second,
                               [&](const auto& at) { return first.contains(at.first); });
  });
}

// The first deed of `one` that `other` does not do at the same place.
std::optional<std::pair<std::uint64_t, std::size_t>> FirstUnlike(const Way& one, const Way& other,
                                                                 bool goes_on) {
  for (const auto& [at, deeds] : one) {
    const auto there = other.find(at);
    if (there == other.end()) continue;  // it has not come as far, or does not log it
    for (std::size_t i = 0; i < deeds.size(); ++i) {
      // Its newest call may be under way.
      if (goes_on && i >= there->second.size() && at == other.rbegin()->first) break;
      if (i >= there->second.size() || there->second[i].text != deeds[i].text) return {{at, i}};
    }
  }
  return {};
}

std::optional<Finding> Compare(const std::map<int, Way>& ways, const char* word, bool goes_on) {
  for (const auto& [rank, way] : ways) {
    for (const auto& [other_rank, other] : ways) {
      const auto unlike = rank == other_rank ? std::nullopt : FirstUnlike(way, other, goes_on);
      if (!unlike) continue;
      const auto& [at, i] = *unlike;
      const Deed& deed = way.at(at)[i];
      const std::vector<Deed>& there = other.at(at);
      const std::string text = i < there.size()
                                   ? fmt::format("rank {} has {}", other_rank, there[i].text)
                                   : fmt::format("rank {} has none", other_rank);
      Finding finding{
          .level = Level::kConsistent,
          .kind = "unlike_ranks",
          .place = deed.place,
          .sentence = fmt::format("ranks take unlike ways in {} {}: rank {} has {}, where {}", word,
                                  at, rank, deed.text, text),
          .facts = {{deed.place, fmt::format("rank {}: {}", rank, deed.text)}},
          .refute = "ranks that are not in one group there, or that have unlike work"};
      if (i < there.size()) {
        finding.facts.push_back(
            {there[i].place, fmt::format("rank {}: {}", other_rank, there[i].text)});
      }
      return finding;
    }
  }
  return {};
}

}  // namespace

Found FindUnlikeRanks(const Evidence& evidence) {
  if (HasLosses(evidence)) return {};  // a rank may have done what it lacks
  std::map<std::string, RankWays> runs;
  std::map<std::pair<std::string, int>, std::vector<std::size_t>> graphs;
  for (std::size_t i = 0; i < evidence.logs.size(); ++i) {
    const Log& log = evidence.logs[i];
    if (log.rank < 0 || log.rows.empty()) continue;
    const std::string& run = evidence.SlotOf(log.rows.front()).run;
    if (log.counts_calls) AddCalls(evidence, i, &runs[run].calls[log.rank]);
    if (log.graph_id != 0) graphs[{run, log.rank}].push_back(i);
  }
  for (const auto& [process, logs] : graphs) {
    AddReplays(evidence, logs, &runs[process.first].replays[process.second]);
  }
  Found answer;
  std::size_t ranks = 0;
  for (const auto& [run, ways] : runs) {
    for (const auto& [all, word] :
         {std::pair(&ways.replays, "replay"), std::pair(&ways.calls, "call")}) {
      if (all->size() < 2) continue;
      if (std::optional<Finding> finding = Compare(*all, word, evidence.check->goes_on)) {
        answer.findings.push_back(*std::move(finding));
      }
      if (HaveOneInCommon(*all)) ranks = std::max(ranks, all->size());
    }
  }
  if (evidence.check->missing_count > 0) return answer;  // such as a collective without a row
  if (ranks > 1 && evidence.source->Describe().stalled_seconds > 0) {
    answer.not_looked =
        "which way the ranks take in the call that stands still: not all of it has "
        "been logged";
    return answer;
  }
  SetClean(ranks, "", "ranks take the same way through graphs and collectives", &answer);
  return answer;
}

}  // namespace cgdebug::analysis::why
