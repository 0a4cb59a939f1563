// freeze.h: a recording of what is left of jobs, live or dead.
#pragma once

#include <cstdint>
#include <set>
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
  std::vector<SessionRecord> sessions;   // that are meant
  std::vector<SlotRecord> slots;         // of these
  std::uint64_t last = 0;                // newest replays of each probe; 0 = all that are there
  bool device_rings = false;             // of slots on the device: what its rings promise
  std::set<std::uint32_t> running = {};  // with device_rings: devices whose rings go on
  std::uint64_t max_bytes = 0;  // of the recording; 0 = as much as the daemon and the disk allow
};

struct FrozenInfo : RecordingInfo {
  std::uint64_t left_out = 0;  // snapshots for which there was no room; they are among those lost
  std::string why;             // why there was no room
  // Probes that are missing from replays that have other probes of their graph. `stood_still`
  // counts the missing snapshots; they are among those lost.
  std::set<std::string> partial;
  std::uint64_t stood_still = 0;
};

// Whether the actions and the live control of a slot want that replay. A recording that loses
// nothing does not count: it may have begun later.
bool WantsReplay(const SlotRecord& slot, std::uint64_t replay);

// Writes what the daemon's memory or the ring still holds of each slot when its turn comes, and
// what the daemon found. Without `last` the recording covers everything that the job produced:
// snapshots that are no longer kept are losses, and so are values of which only the statistics are
// left. If not all of it has room, each probe keeps as many of its newest replays, and the older
// ones are losses with the cause.
//
// Rings in device memory stop and go on in the middle of a replay, so the replay in which they went
// on, and one that was under way on another stream, have some probes of a graph only. With
// `device_rings`, what a probe lacks of a replay that others of its graph have is a loss.
Result<FrozenInfo> Freeze(const FreezeRequest& request, const recording::WriterOptions& options,
                          const SnapshotStore& store, RingReads* rings);

}  // namespace cgdebug::pipeline
