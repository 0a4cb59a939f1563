#include "daemon/serve/candidates.h"

#include <algorithm>
#include <set>

#include "daemon/core/base/graph_labels.h"
#include "daemon/pipeline/snapshot_maker.h"

namespace cgdebug::serve {

using pipeline::StoredSnapshot;

namespace {

// When its newest snapshot came: each slot counts its own replays, so they cannot be compared.
std::uint64_t NewestSerial(const Candidate& candidate) {
  return candidate.history.back().snapshot->serial;
}

template <typename History>
auto FindIn(History& history, std::int64_t replay) {
  return std::find_if(history.begin(), history.end(), [&](const StoredSnapshot& stored) {
    return stored.snapshot->replay == static_cast<std::uint64_t>(replay);
  });
}

bool HasReplay(const Candidate& candidate, std::int64_t replay) {
  return FindIn(candidate.history, replay) != candidate.history.end();
}

}  // namespace

bool RingMayHave(const Candidate& candidate, std::int64_t replay, bool metadata_only) {
  if (replay <= 0 || static_cast<std::uint64_t>(replay) > candidate.slot.counters.replays) {
    return false;
  }
  const auto found = FindIn(candidate.history, replay);
  if (found == candidate.history.end()) return true;
  return found->payload == nullptr && found->snapshot->has_values && !metadata_only;
}

void AddFromRing(Candidate* candidate, std::int64_t replay, pipeline::RingReads* rings) {
  const pipeline::SlotPtr& slot = candidate->slot.slot;
  pipeline::RingContent content =
      rings->Read({.slot = slot, .replay = static_cast<std::uint64_t>(replay)});
  if (!content.readable || content.entries.empty()) return;
  ring::Entry& entry = content.entries.front();
  entry.flags &= ~layout::kEntryDropValues;  // whatever was wanted of it: the values are there
  pipeline::PayloadPool pool(0);
  StoredSnapshot stored = pipeline::SnapshotMaker(&pool).Make(slot, &entry, {});
  const auto found = FindIn(candidate->history, replay);
  if (found != candidate->history.end()) {
    found->payload = std::move(stored.payload);
    return;
  }
  const auto behind =
      std::ranges::upper_bound(candidate->history, stored.snapshot->ordinal, {},
                               [](const StoredSnapshot& other) { return other.snapshot->ordinal; });
  candidate->history.insert(behind, std::move(stored));
}

void PreferLiving(std::vector<Candidate>* candidates, std::int64_t replay) {
  const bool is_in_living =
      std::any_of(candidates->begin(), candidates->end(), [&](const Candidate& candidate) {
        return !candidate.slot.retired && HasReplay(candidate, replay);
      });
  if (!is_in_living) return;
  std::erase_if(*candidates, [](const Candidate& candidate) { return candidate.slot.retired; });
}

const StoredSnapshot* FindReplay(const std::vector<Candidate>& candidates, std::int64_t replay,
                                 const Candidate** owner) {
  const StoredSnapshot* found = nullptr;
  for (const Candidate& candidate : candidates) {
    for (const StoredSnapshot& stored : candidate.history) {
      if (stored.snapshot->replay != static_cast<std::uint64_t>(replay)) continue;
      if (found != nullptr && found->snapshot->serial > stored.snapshot->serial) {
        continue;
      }
      found = &stored;
      *owner = &candidate;
    }
  }
  return found;
}

const StoredSnapshot* FindFromEnd(const std::vector<Candidate>& candidates, std::uint64_t back,
                                  const Candidate** owner) {
  *owner = &*std::max_element(
      candidates.begin(), candidates.end(),
      [](const auto& a, const auto& b) { return NewestSerial(a) < NewestSerial(b); });
  const auto& history = (*owner)->history;
  return back > history.size() ? nullptr : &history[history.size() - back];
}

std::string Ambiguous(const std::vector<Candidate>& candidates, std::int64_t replay,
                      const pipeline::Registry& registry) {
  if (replay <= 0) return "";
  std::set<std::string> names;
  for (const Candidate& candidate : candidates) {
    if (!HasReplay(candidate, replay)) continue;
    const pipeline::SlotIdentity& slot = *candidate.slot.slot;
    names.insert(slot.probe + registry.PlaceOf(slot).qualifier);
  }
  return AmbiguousReplay({names.begin(), names.end()}, replay);
}

}  // namespace cgdebug::serve
