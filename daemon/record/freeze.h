// freeze.h: a recording of what is left of jobs, live or dead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/model/registry.h"
#include "daemon/model/snapshot_store.h"
#include "daemon/record/active_recording.h"
#include "daemon/record/ring_reads.h"

namespace cgdebug::pipeline {

struct FreezeRequest {
  std::string directory;
  std::vector<std::string> probes;
  std::vector<SlotRecord> slots;  // of the sessions that are meant
  std::uint64_t last = 0;         // newest replays of each probe; 0 = all that are there
  bool device_rings = false;      // of slots on the device: what its rings promise
  std::uint64_t max_bytes = 0;    // of the recording; 0 = as much as the daemon and the disk allow
};

struct FrozenInfo : RecordingInfo {
  std::uint64_t left_out = 0;  // snapshots for which there was no room; they are among those lost
  std::string why;             // there was none
};

// Writes what the daemon's memory or the ring still holds of each slot when its turn comes, and
// what the daemon found. Without `last` the recording covers everything that the job produced:
// snapshots that are no longer kept are losses, and so are values of which only the statistics are
// left. If not all of it has room, each probe keeps as many of its newest replays, and the older
// ones are losses with the cause.
Result<FrozenInfo> Freeze(const FreezeRequest& request, const recording::WriterOptions& options,
                          const SnapshotStore& store, RingReads* rings);

}  // namespace cgdebug::pipeline
