#include "daemon/serve/candidates.h"

#include <algorithm>
#include <set>

#include "daemon/core/base/graph_labels.h"
#include "daemon/pipeline/snapshot_maker.h"

namespace cgdebug::serve {

using pipeline::StoredSnapshot;

namespace {

// Serial of the newest snapshot. Each slot counts its own replays, so the replay numbers of two
// slots cannot be compared.
std::uint64_t NewestSerial(const Candidate& candidate) {
  return candidate.history.empty() ? 0 : candidate.history.back().snapshot->serial;
}

// Whether memory lacks the newest snapshot that the daemon read. Of a slot on the device it reads
// only the header, unless somebody wants the values.
bool LacksNewest(const Candidate& candidate) {
  const layout::Counters& counters = candidate.slot.counters;
  if (candidate.history.empty()) return counters.produced != 0;
  const std::uint64_t read = counters.consumed + counters.lost_overwritten + counters.lost_damaged +
                             counters.lost_no_memory;
  return candidate.history.back().snapshot->ordinal < read;
}

// Whether both slots are at the same replay of the same graph.
bool AreAtOneReplay(const pipeline::SlotRecord& a, const pipeline::SlotRecord& b) {
  const std::uint64_t graph = a.slot->registration.graph_id;
  return graph != 0 && graph == b.slot->registration.graph_id &&
         a.counters.replays == b.counters.replays;
}

bool IsMeant(const pipeline::Snapshot& snapshot, const When& when) {
  return snapshot.replay == static_cast<std::uint64_t>(when.replay) &&
         (!when.iteration || snapshot.iteration == *when.iteration);
}

template <typename History>
auto FindIn(History& history, const When& when) {
  const auto found = std::find_if(history.rbegin(), history.rend(), [&](const auto& stored) {
    return IsMeant(*stored.snapshot, when);
  });
  return found == history.rend() ? history.end() : found.base() - 1;
}

bool HasReplay(const Candidate& candidate, const When& when) {
  return FindIn(candidate.history, when) != candidate.history.end();
}

}  // namespace

bool RingMayHave(const Candidate& candidate, const When& when, bool metadata_only) {
  if (when.replay <= 0 && candidate.slot.slot->IsOnDevice()) {
    if (LacksNewest(candidate)) return true;
    return !candidate.history.empty() && !metadata_only &&
           candidate.history.back().payload == nullptr;
  }
  if (when.replay <= 0 ||
      static_cast<std::uint64_t>(when.replay) > candidate.slot.counters.replays) {
    return false;
  }
  const auto found = FindIn(candidate.history, when);
  if (found == candidate.history.end()) return true;
  return found->payload == nullptr && found->snapshot->has_values && !metadata_only;
}

void AddFromRing(Candidate* candidate, const When& when, pipeline::RingReads* rings) {
  const pipeline::SlotPtr& slot = candidate->slot.slot;
  pipeline::RingContent content =
      rings->Read({.slot = slot,
                   .replay = static_cast<std::uint64_t>(std::max<std::int64_t>(when.replay, 0)),
                   .iteration = when.iteration,
                   .newest = when.replay <= 0});
  if (!content.readable || content.entries.empty()) {
    const bool was_there = std::ranges::any_of(content.unreadable, [](const auto& one) {
      return one.second == layout::LossCause::kOnDevice;
    });
    candidate->left_on_device =
        when.replay <= 0 ? LacksNewest(*candidate) : was_there && !HasReplay(*candidate, when);
    return;
  }
  ring::Entry& entry = content.entries.front();
  entry.flags &= ~layout::kEntryDropValues;  // whatever was wanted of it: the values are there
  pipeline::PayloadPool pool(0);
  StoredSnapshot stored = pipeline::SnapshotMaker(&pool).Make(slot, &entry, {});
  const auto found = std::ranges::find_if(candidate->history, [&](const StoredSnapshot& other) {
    return other.snapshot->ordinal == stored.snapshot->ordinal;
  });
  if (found != candidate->history.end()) {
    found->payload = std::move(stored.payload);
    return;
  }
  const auto behind =
      std::ranges::upper_bound(candidate->history, stored.snapshot->ordinal, {},
                               [](const StoredSnapshot& other) { return other.snapshot->ordinal; });
  candidate->history.insert(behind, std::move(stored));
}

void PreferLiving(std::vector<Candidate>* candidates, const When& when) {
  const bool is_in_living =
      std::any_of(candidates->begin(), candidates->end(), [&](const Candidate& candidate) {
        if (candidate.slot.retired) return false;
        return HasReplay(candidate, when) || (when.replay > 0 && candidate.left_on_device);
      });
  if (!is_in_living) return;
  std::erase_if(*candidates, [](const Candidate& candidate) { return candidate.slot.retired; });
}

const Candidate* FindLeftOnDevice(const std::vector<Candidate>& candidates, const When& when,
                                  const StoredSnapshot* found, const Candidate* owner) {
  for (const Candidate& candidate : candidates) {
    if (!candidate.left_on_device) continue;
    if (when.replay > 0) {
      if (found == nullptr) return &candidate;
      continue;
    }
    if (&candidate == owner || owner->history.empty()) return &candidate;
    const std::int64_t newest_ns = owner->history.back().snapshot->timestamp_ns;
    const bool is_newer = candidate.slot.last_timestamp_ns > newest_ns;
    if (is_newer && !AreAtOneReplay(candidate.slot, owner->slot)) return &candidate;
  }
  return nullptr;
}

const StoredSnapshot* FindReplay(const std::vector<Candidate>& candidates, const When& when,
                                 const Candidate** owner) {
  const StoredSnapshot* found = nullptr;
  for (const Candidate& candidate : candidates) {
    for (const StoredSnapshot& stored : candidate.history) {
      if (!IsMeant(*stored.snapshot, when)) continue;
      if (found != nullptr && found->snapshot->serial > stored.snapshot->serial) continue;
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

std::string Ambiguous(const std::vector<Candidate>& candidates, const When& when,
                      const pipeline::Registry& registry, const std::string& among) {
  if (when.replay <= 0) return "";
  std::set<std::string> names;
  for (const Candidate& candidate : candidates) {
    if (!HasReplay(candidate, when) && !candidate.left_on_device) continue;
    const pipeline::SlotIdentity& slot = *candidate.slot.slot;
    names.insert(slot.probe + registry.PlaceOf(slot).qualifier);
  }
  return AmbiguousReplay({names.begin(), names.end()}, when.replay, "", among);
}

}  // namespace cgdebug::serve
