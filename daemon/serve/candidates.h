// candidates.h: which snapshot a Get means, among the slots that have the probe's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/model/registry.h"
#include "daemon/model/snapshot.h"
#include "daemon/record/ring_reads.h"

namespace cgdebug::serve {

// The snapshots of one slot that a Get may mean, oldest first. At least one, unless
// `left_on_device`.
struct Candidate {
  pipeline::SlotRecord slot;
  std::vector<pipeline::StoredSnapshot> history;
  // The slot has what is meant, but its values are on the device and did not come.
  bool left_on_device = false;
};

// Which of them: the replay, and an iteration of it. Without one, the last of that replay.
struct When {
  std::int64_t replay = 0;
  std::optional<std::uint32_t> iteration = std::nullopt;  // of a conditional body
};

// Whether memory lacks that snapshot of the slot, or values that are wanted, and the ring may still
// hold them.
bool RingMayHave(const Candidate& candidate, const When& when, bool metadata_only);
// Adds the snapshot to the history if the ring has it. Otherwise says whether it was left on the
// device. Waits for the ingest thread, and for values on the device.
// Thread: any other.
void AddFromRing(Candidate* candidate, const When& when, pipeline::RingReads* rings);

// Drops slots whose graph is gone if a living graph has that replay: a job that captures its model
// again means the graph that it runs now.
void PreferLiving(std::vector<Candidate>* candidates, const When& when);

// The candidate whose snapshot is meant, but was left on the device; null if there is none. `owner`
// and `found` are what FindReplay() or FindFromEnd() returned. Lifetime: the result points into
// `candidates`.
const Candidate* FindLeftOnDevice(const std::vector<Candidate>& candidates, const When& when,
                                  const pipeline::StoredSnapshot* found, const Candidate* owner);

// Sets `owner` to the candidate that has the result. Null when no candidate has that replay, and
// `owner` stays as it was. Lifetime: the result points into `candidates`.
const pipeline::StoredSnapshot* FindReplay(const std::vector<Candidate>& candidates,
                                           const When& when, const Candidate** owner);

// `back`: 1 is the newest snapshot of the slot that has the newest of all; sets `owner` to that
// slot. Null when it has fewer.
// Requires: there is a candidate.
const pipeline::StoredSnapshot* FindFromEnd(const std::vector<Candidate>& candidates,
                                            std::uint64_t back, const Candidate** owner);

// Why a replay number alone is not enough, and what to type; empty if it is enough.
// `among`: the options that chose them.
std::string Ambiguous(const std::vector<Candidate>& candidates, const When& when,
                      const pipeline::Registry& registry, const std::string& among);

}  // namespace cgdebug::serve
