// snapshot_maker.h: from what lay in a ring to a snapshot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/model/snapshot.h"
#include "daemon/pipeline/payload_pool.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::pipeline {

// Of one slot, in the order of its ordinals: it knows whether the bytes changed.
class SnapshotMaker {
 public:
  // `pool` outlives the maker.
  explicit SnapshotMaker(PayloadPool* pool) : pool_(pool) {}

  // `control`: the slot's, for entries whose values are wanted under its trigger only. Takes the
  // entry's payload.
  StoredSnapshot Make(const SlotPtr& slot, ring::Entry* entry, const layout::SlotControl& control);
  // The one before the next is this.
  void Follow(const StoredSnapshot& stored);

 private:
  PayloadPtr TakeValues(ring::Entry* entry, const layout::SlotControl& control, Snapshot* snapshot);

  PayloadPool* pool_;
  std::optional<numerics::Stats> previous_stats_;
  std::weak_ptr<const std::vector<std::byte>> previous_payload_;
};

}  // namespace cgdebug::pipeline
