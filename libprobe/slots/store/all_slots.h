// all_slots.h: what the slots of this process tell together.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/slots/probe_state.h"

namespace cgdebug {

using SlotList = std::list<std::unique_ptr<capture::ProbeSlot>>;

// Thread: with the probe table's lock.
// True if the daemon has consumed every entry of `probe` that someone waits for; nullptr: of all
// probes, closed ones too.
bool AllDrained(const SlotList& slots, const ProbeState* probe);
// Whether it has read everything, also what nobody waits for.
bool AllRead(const SlotList& slots);
// Adds what nobody has looked at in the slot. Requires: the slot has a reader.
void AddGaps(const capture::ProbeSlot& slot, ReadState* gaps);
// The slot whose counters on the device these are; nullptr if it is gone.
const capture::ProbeSlot* FindState(const SlotList& slots, const capture::DirectState* state);
// The slots that have values in device memory.
std::vector<capture::ProbeSlot*> OnDevice(const SlotList& slots);

}  // namespace cgdebug
