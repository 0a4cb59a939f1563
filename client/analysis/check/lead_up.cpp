#include "client/analysis/check/lead_up.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace cgdebug::analysis {
namespace {

using numerics::Stats;
using source::Key;
using source::Source;

constexpr std::size_t kEarlierReplays = 3;
constexpr double kJump = 10;  // times as large as in the snapshot before

std::vector<Key>::const_iterator FirstAtOrAfter(const SeenProbe& probe, std::uint64_t replay) {
  return std::lower_bound(probe.keys.begin(), probe.keys.end(), replay,
                          [](const Key& key, std::uint64_t value) { return key.replay < value; });
}

Result<Stats> StatsAt(Source& source, std::size_t slot, const Key& key) {
  const Result<source::Snapshot> snapshot = source.Get(slot, key);
  if (!snapshot.ok()) return snapshot.error();
  return source::StatsOf(source, *snapshot);
}

// Goes back from the first bad snapshot through the probes before it and then through earlier
// replays: the cause of a NaN in a weight is most often in the replay before.
void AddFrames(Source& source, const std::vector<const SeenProbe*>& of_graph,
               std::size_t max_frames, FirstBad* first) {
  const std::size_t limit = std::max<std::size_t>(max_frames, 1);
  std::size_t place = first->place;
  std::uint64_t replay = first->snapshot.key.replay;
  while (first->frames.size() < limit) {
    while (place > 0 && first->frames.size() < limit) {
      const SeenProbe& probe = *of_graph[--place];
      const Key* key = KeyOf(probe, replay);
      if (key == nullptr) continue;
      const Result<Stats> stats = StatsAt(source, probe.slot, *key);
      if (stats.ok()) first->frames.push_back({probe.slot, *key, *stats});
    }
    std::uint64_t earlier = 0;
    for (const SeenProbe* probe : of_graph) {
      const auto after = FirstAtOrAfter(*probe, replay);
      if (after != probe->keys.begin()) earlier = std::max(earlier, (after - 1)->replay);
    }
    if (earlier == 0) break;
    replay = earlier;
    place = of_graph.size();
  }
  std::reverse(first->frames.begin(), first->frames.end());
}

// Calls from the first to the last, both included.
using CallRange = std::pair<std::uint64_t, std::uint64_t>;

// In which calls the `limit` snapshots up to the first bad one are, as far as that is known without
// reading any: calls of one process come one after another.
CallRange CallsOf(const Source& source, const std::vector<const SeenProbe*>& of_graph,
                  std::size_t limit, const FirstBad& first) {
  const source::Slot& bad = source.slots()[first.slot];
  const std::uint64_t last = first.snapshot.key.replay;
  std::map<std::uint64_t, std::size_t> keys_of_call;
  for (const SeenProbe* probe : of_graph) {
    const source::Slot& slot = source.slots()[probe->slot];
    if (!slot.counts_calls() || slot.uuid != bad.uuid || slot.rank != bad.rank) {
      return {0, UINT64_MAX};
    }
    const auto end = FirstAtOrAfter(*probe, last);
    for (auto key = probe->keys.begin(); key != end; ++key) {
      ++keys_of_call[key->replay];
    }
  }
  std::size_t keys = 0;
  for (auto call = keys_of_call.rbegin(); call != keys_of_call.rend(); ++call) {
    keys += call->second;
    if (keys >= limit) return {call->first, last};
  }
  return {0, last};
}

// Eager calls count the replays of each shape separately, and a conditional body runs several times
// in a replay, so they are put in order by time.
void AddFramesByTime(Source& source, const std::vector<const SeenProbe*>& of_graph,
                     std::size_t max_frames, FirstBad* first) {
  struct Call {
    source::Moment moment;
    std::size_t slot;
    Key key;
  };
  const std::size_t limit = std::max<std::size_t>(max_frames, 1);
  const source::Moment last = MomentOf(source.slots()[first->slot], first->snapshot);
  std::vector<Call> calls;
  const auto [first_call, last_call] = CallsOf(source, of_graph, limit, *first);
  for (const SeenProbe* probe : of_graph) {
    const auto begin = FirstAtOrAfter(*probe, first_call);
    const auto behind =
        last_call == UINT64_MAX ? probe->keys.end() : FirstAtOrAfter(*probe, last_call + 1);
    const auto end = std::partition_point(begin, behind, [&](const Key& key) {
      const Result<source::Snapshot> snapshot = source.Get(probe->slot, key);
      return snapshot.ok() && MomentOf(source.slots()[probe->slot], *snapshot) <= last;
    });
    const auto count = std::min(end - begin, static_cast<std::ptrdiff_t>(limit));
    for (auto key = end - count; key != end; ++key) {
      const Result<source::Snapshot> snapshot = source.Get(probe->slot, *key);
      if (!snapshot.ok()) continue;
      calls.push_back({MomentOf(source.slots()[probe->slot], *snapshot), probe->slot, *key});
    }
  }
  std::ranges::sort(calls, {}, &Call::moment);
  if (calls.size() > limit)
    calls.erase(calls.begin(), calls.end() - static_cast<std::ptrdiff_t>(limit));
  for (const Call& call : calls) {
    const Result<Stats> stats = StatsAt(source, call.slot, call.key);
    if (stats.ok()) first->frames.push_back({call.slot, call.key, *stats});
  }
}

bool HasIterations(const SeenProbe& probe) {
  return std::ranges::any_of(probe.keys, [](const Key& key) { return key.iteration > 0; });
}

// Whether replay numbers do not put the snapshots in order.
bool NeedsTime(const Source& source, const std::vector<const SeenProbe*>& of_graph) {
  std::set<std::string> names;
  for (const SeenProbe* probe : of_graph) {
    const source::Slot& slot = source.slots()[probe->slot];
    if (slot.in_body && (!slot.counts_calls() || HasIterations(*probe))) return true;
    if (slot.graph_id == 0 && !names.insert(SlotName(slot)).second) return true;
  }
  return false;
}

// The first jump that is not small beside the largest: each one makes the next ones larger.
void FindJump(Source& source, const std::vector<const SeenProbe*>& of_graph, FirstBad* first) {
  struct Found {
    Jump jump;
    std::uint64_t order;
    double ratio;
  };
  const auto end = std::make_pair(first->snapshot.key.replay, source.slots()[first->slot].order);
  std::vector<Found> jumps;
  double largest = 0;
  for (const SeenProbe* probe : of_graph) {
    const std::uint64_t order = source.slots()[probe->slot].order;
    for (std::size_t i = 1; i < probe->keys.size(); ++i) {
      const std::uint64_t replay = probe->keys[i].replay;
      const double from = probe->abs_max[i - 1], to = probe->abs_max[i];
      const bool is_known = from > 0 && std::isfinite(from) && std::isfinite(to);
      if (!is_known || to < kJump * from || std::make_pair(replay, order) >= end) continue;
      jumps.push_back({{probe->slot, replay, from, to}, order, to / from});
      largest = std::max(largest, to / from);
    }
  }
  std::erase_if(jumps, [&](const Found& found) { return found.ratio < std::sqrt(largest); });
  const auto earliest = std::ranges::min_element(
      jumps, {}, [](const Found& found) { return std::make_pair(found.jump.replay, found.order); });
  if (earliest != jumps.end()) first->jump = earliest->jump;
}

// One number describes several steps only if they are alike; for 0.9, 1.3 and 350 it would mislead.
bool GrowsEvenly(const std::vector<FirstBad::Earlier>& earlier) {
  double least = INFINITY, most = 0;
  for (std::size_t i = 1; i < earlier.size(); ++i) {
    const auto steps = static_cast<double>(earlier[i].key.replay - earlier[i - 1].key.replay);
    const double growth = std::log(earlier[i].abs_max / earlier[i - 1].abs_max) / steps;
    least = std::min(least, growth);
    most = std::max(most, growth);
  }
  return least > 0.4 * most;
}

void AddEarlier(Source& source, const SeenProbe& probe, FirstBad* first) {
  const auto end = std::ranges::find(probe.keys, first->snapshot.key.id, &Key::id);
  const auto count = std::min<std::ptrdiff_t>(end - probe.keys.begin(), kEarlierReplays);
  for (auto key = end - count; key != end; ++key) {
    const Result<Stats> stats = StatsAt(source, first->slot, *key);
    if (stats.ok()) first->earlier.push_back({*key, stats->abs_max});
  }
  const bool is_by_replay = !source.slots()[first->slot].in_body ||
                            (source.slots()[first->slot].counts_calls() && !HasIterations(probe));
  if (first->earlier.size() < 2 || !is_by_replay) return;
  const FirstBad::Earlier &from = first->earlier.front(), &to = first->earlier.back();
  const double ratio = to.abs_max / from.abs_max;
  const auto steps = static_cast<double>(to.key.replay - from.key.replay);
  if (std::isfinite(ratio) && ratio > 1 && GrowsEvenly(first->earlier)) {
    first->growth = std::pow(ratio, 1 / steps);
  }
}

}  // namespace

const Key* KeyOf(const SeenProbe& probe, std::uint64_t replay) {
  const auto found = FirstAtOrAfter(probe, replay);
  return found == probe.keys.end() || found->replay != replay ? nullptr : &*found;
}

void DescribeLeadUp(Source& source, const std::vector<const SeenProbe*>& of_graph,
                    std::size_t max_frames, FirstBad* first) {
  if (first->snapshot.serial != 0 && NeedsTime(source, of_graph)) {
    AddFramesByTime(source, of_graph, max_frames, first);
  } else {
    AddFrames(source, of_graph, max_frames, first);
    FindJump(source, of_graph, first);
  }
  AddEarlier(source, *of_graph[first->place - 1], first);
}

}  // namespace cgdebug::analysis
