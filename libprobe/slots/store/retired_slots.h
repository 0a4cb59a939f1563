// retired_slots.h: which slots of graphs that are gone are kept no longer.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/slots/probe_registry.h"
#include "libprobe/slots/store/all_slots.h"

namespace cgdebug {

// The records of a graph that is gone can still be asked for. Kept are those of the newest such
// graph of each probe, and older ones within limits, because a job may capture again and again.
// Returns the slots in `slots` (in order of creation) that are to go, with their probes, newest
// first. `all`: none is kept. `only`: looks at this probe alone.
std::vector<std::pair<std::shared_ptr<ProbeState>, capture::ProbeSlot*>> RetiredBeyondLimits(
    const SlotList& slots, const ProbeRegistry& probes, bool all, const ProbeState* only);

}  // namespace cgdebug
