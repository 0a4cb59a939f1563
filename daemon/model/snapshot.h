// snapshot.h: one tensor at one replay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/core/numerics/stats.h"
#include "daemon/model/identity.h"

namespace cgdebug::pipeline {

// Everything except the values. Never changed once it is made; kept for long.
struct Snapshot {
  SlotPtr slot;
  std::uint64_t ordinal = 0;    // of the slot's accepted snapshots, from 1
  std::uint64_t replay = 0;     // from 1; of the root graph for a slot in a conditional body
  std::uint32_t iteration = 0;  // of that body within the replay, from 0
  std::uint64_t serial = 0;     // of the replay: (serial, order) sorts all snapshots of a session
  std::int64_t timestamp_ns = 0;
  std::int64_t step = -1;
  numerics::Stats stats;
  bool changed = true;     // its bytes differ from those of the slot's snapshot before it
  bool has_values = true;  // false: only statistics left the job, or only they were wanted
  bool on_device = false;  // its values stayed in device memory, whether they can be had or not
  bool is_mask = false;    // of a row of an op log: -Inf that may be on purpose (core/ops/masks.h)
  bool forced = false;     // the live control asked for it, so every sink wants it
};
using SnapshotPtr = std::shared_ptr<const Snapshot>;

// The values: contiguous, of the slot's dtype and shape. Null for a snapshot that has none.
using PayloadPtr = std::shared_ptr<const std::vector<std::byte>>;

struct StoredSnapshot {
  SnapshotPtr snapshot;
  PayloadPtr payload;  // also empty if the memory limit dropped it; the statistics stay
};

}  // namespace cgdebug::pipeline
