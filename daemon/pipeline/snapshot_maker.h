// snapshot_maker.h: makes a snapshot of a ring entry.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/model/snapshot.h"
#include "daemon/pipeline/payload_pool.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::pipeline {

// For one slot, in the order of its ordinals: it knows whether the bytes changed.
class SnapshotMaker {
 public:
  // `pool` outlives the maker.
  explicit SnapshotMaker(PayloadPool* pool) : pool_(pool) {}

  // Takes the entry's payload. `control` is the slot's, for entries whose values are wanted only if
  // its trigger holds.
  StoredSnapshot Make(const SlotPtr& slot, ring::Entry* entry, const layout::SlotControl& control);
  // The payload of the last snapshot with values; null if nobody has it any more. As long as the
  // caller keeps it, an entry may leave it out (ring::Entry::is_held).
  PayloadPtr previous_payload() const { return previous_payload_.lock(); }
  // Sets the snapshot before the next one.
  void Follow(const StoredSnapshot& stored);

 private:
  PayloadPtr TakeValues(ring::Entry* entry, const layout::SlotControl& control, Snapshot* snapshot);

  PayloadPool* pool_;
  std::optional<numerics::Stats> previous_stats_;
  std::weak_ptr<const std::vector<std::byte>> previous_payload_;
};

}  // namespace cgdebug::pipeline
