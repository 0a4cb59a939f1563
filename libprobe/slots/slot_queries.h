// slot_queries.h: what one slot of this process tells: its status and its records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/probe_slot.h"

namespace cgdebug {

// Requires: the slot is published, except for NeedsDaemon() and Unread().
// Thread:   AppendRecords() any that pinned the slot; the rest with the probe table's lock.
SlotStatus StatusOf(const capture::ProbeSlot& slot);
// Adds the counts of `from`, and those of its verdict.
void Add(const SlotStatus& from, SlotStatus* to);

// Appends the newest `last` records of a slot that its TensorRecord wanted and that are newer than
// `cleared`, oldest first.
void AppendRecords(const capture::ProbeSlot& slot, std::uint64_t cleared, std::size_t last,
                   std::vector<Record>* records);

// How many snapshots the daemon has not consumed yet; 0 if the slot is not published.
std::uint64_t Unread(const capture::ProbeSlot& slot);

// Whether the slot has an action that only a daemon carries out, or a recording needs every
// snapshot.
bool NeedsDaemon(const capture::ProbeSlot& slot);

}  // namespace cgdebug
