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
};

// Writes what the daemon's memory or the ring still holds of each slot when its turn comes, and
// what the daemon found. Without `last` the recording covers everything that the job produced:
// snapshots that are no longer kept are losses, and so are values of which only the statistics are
// left.
Result<RecordingInfo> Freeze(const FreezeRequest& request, const recording::WriterOptions& options,
                             const SnapshotStore& store, RingReads* rings);

}  // namespace cgdebug::pipeline
