#include "client/analysis/check/completeness.h"

#include <fmt/format.h>

#include <algorithm>

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;

std::uint64_t CaptureOf(const GraphKey& graph) { return std::get<2>(graph); }  // 0: eager

std::string AbsentText(const GraphKey& graph, std::uint64_t replay,
                       const std::vector<std::string>& absent) {
  constexpr std::size_t kNamed = 3;
  const std::size_t named = std::min(absent.size(), kNamed);
  const std::string names =
      fmt::format("{}", fmt::join(absent.begin(), absent.begin() + named, ", "));
  const int rank = std::get<1>(graph);
  return fmt::format(
      "{}replay {} has no snapshot of {}{}", rank < 0 ? "" : fmt::format("rank {}: ", rank), replay,
      names, absent.size() > named ? fmt::format(" and {} more", absent.size() - named) : "");
}

}  // namespace

Completeness::Completeness(source::Source& source, const Scan& scan)
    : source_(source), scan_(scan) {
  for (const Scanned& scanned : scan_.probes()) {
    const Slot& slot = source_.slots()[scanned.slot];
    if (slot.graph_id == 0) ++eager_slots_[{GraphOf(slot), SlotName(slot)}];
  }
}

void Completeness::FindNeverWritten(FindingList* findings) {
  std::map<GraphKey, std::uint64_t> last;
  for (const Scanned& scanned : scan_.probes()) {
    if (scanned.keys.empty()) continue;
    std::uint64_t& replay = last[GraphOf(source_.slots()[scanned.slot])];
    replay = std::max(replay, scanned.keys.back().replay);
  }
  for (const Scanned& scanned : scan_.probes()) {
    const Slot& slot = source_.slots()[scanned.slot];
    const auto graph = last.find(GraphOf(slot));
    // Snapshots that were not wanted, or were lost, are not the probe's fault.
    if (!scanned.is_empty || graph == last.end() || GapsOf(scanned.slot) != nullptr) continue;
    if (slot.in_body) continue;        // its body was not taken
    if (slot.graph_id == 0) continue;  // nobody called it: what runs eagerly is no graph
    findings->Add({.kind = FindingKind::kNeverWritten,
                   .slot = scanned.slot,
                   .first_replay = 1,
                   .last_replay = graph->second});
  }
}

void Completeness::Count(Check* check) {
  if (scan_.probes().empty()) return;
  std::map<GraphKey, std::vector<const Scanned*>> graphs;
  for (const Scanned& scanned : scan_.probes()) {
    graphs[GraphOf(source_.slots()[scanned.slot])].push_back(&scanned);
  }
  const auto largest = std::max_element(
      graphs.begin(), graphs.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::optional<GraphKey> shown;
  if (check->first) shown = GraphOf(source_.slots()[check->first->slot]);
  std::map<GraphKey, GraphPresence> all;
  for (const auto& [graph, members] : graphs) {
    const bool is_eager = CaptureOf(graph) == 0;
    // Modules that are called eagerly beside captured graphs, as in a warm-up, need not be called
    // equally often.
    if (is_eager && CaptureOf(largest->first) != 0 && shown != graph) continue;
    const bool has_first_bad = check->first && shown == graph;
    GraphPresence& one = all[graph] = PresenceIn(
        members, has_first_bad ? std::optional(check->first->snapshot.key.replay) : std::nullopt);
    // Outside of graphs a place need not run in each call: only losses are missing, and are
    // counted.
    if (is_eager && scan_.has_serials() && !one.absent.empty()) one = {{one.replay, 0, 0}, {}};
    if (one.absent.empty()) continue;
    if (!shown) shown = graph;
    check->missing_count += one.absent.size();
    check->missing.push_back(AbsentText(graph, one.replay, one.absent));
  }
  const GraphKey& graph = shown ? *shown : largest->first;
  check->replay_word = ReplayWord(source_.slots()[graphs.at(graph).front()->slot]);
  check->presence = all[graph];
}

Completeness::GraphPresence Completeness::PresenceIn(const std::vector<const Scanned*>& graph,
                                                     std::optional<std::uint64_t> bad_replay) {
  GraphPresence one;
  for (const Scanned* scanned : graph) {
    if (!scanned->keys.empty()) one.replay = std::max(one.replay, scanned->keys.back().replay);
  }
  if (bad_replay) {
    one.replay = *bad_replay;
  } else if (source_.Describe().is_growing && one.replay > 1) {
    --one.replay;  // if the job still runs, snapshots of its newest replay may be on their way
  }
  for (const Scanned* scanned : graph) {
    const Slot& slot = source_.slots()[scanned->slot];
    if (one.replay == 0 || (IsOfSeveralShapes(slot) && !slot.counts_calls())) continue;
    const bool is_there = KeyOf(*scanned, one.replay) != nullptr;
    // A conditional body need not run in that replay. What of it was lost lies in a gap.
    if (!is_there && (slot.in_body || !IsWanted(scanned->slot, one.replay))) continue;
    ++one.expected;
    if (is_there) {
      ++one.present;
    } else {
      one.absent.push_back(SlotText(slot));
    }
  }
  return one;
}

// Whether a missing replay was expected. A source does not always know that a probe wants one
// replay in N. It does if it never has two replays in a row although nothing was lost.
bool Completeness::IsWanted(std::size_t slot, std::uint64_t replay) {
  const std::uint32_t every = source_.slots()[slot].every;
  if (every > 1) return (replay - 1) % every == 0;
  const Result<std::vector<Key>> keys = source_.Keys(slot);
  if (!keys.ok() || keys->empty() || replay < keys->front().replay) return true;
  const std::vector<source::Gap>* gaps = GapsOf(slot);
  std::uint64_t before = keys->front().replay, distance = 1;
  for (std::size_t i = 1; i < keys->size(); ++i) {
    const std::uint64_t from = (*keys)[i - 1].replay, to = (*keys)[i].replay;
    if (to < replay) before = to;
    if (to - from <= distance || (from < replay && replay < to)) continue;
    const bool is_loss =
        gaps != nullptr && std::ranges::any_of(*gaps, [&](const source::Gap& gap) {
          return gap.after_replay < to && (gap.before_replay == 0 || gap.before_replay > from);
        });
    if (!is_loss) distance = to - from;
  }
  return replay - before >= distance;
}

// Eager calls with tensors of several shapes are several slots, and each counts its own calls, so
// there is no replay in which all of them have a snapshot.
bool Completeness::IsOfSeveralShapes(const Slot& slot) const {
  if (slot.graph_id != 0) return false;
  const auto count = eager_slots_.find({GraphOf(slot), SlotName(slot)});
  return count != eager_slots_.end() && count->second > 1;
}

const std::vector<source::Gap>* Completeness::GapsOf(std::size_t slot) {
  if (!gaps_) {
    gaps_.emplace();
    for (source::Gap& gap : source_.Gaps()) (*gaps_)[gap.slot].push_back(std::move(gap));
  }
  const auto found = gaps_->find(slot);
  return found == gaps_->end() ? nullptr : &found->second;
}

}  // namespace cgdebug::analysis
