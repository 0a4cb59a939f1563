// device_ring.h: rings in device memory. The staging copy on the compute path is the ring entry,
// and the leaf sends only a header and, if they are wanted, statistics.
//
//   compute path:  copy into entry `ring_index` of the ring
//   leaf:          header -> ring in shared memory, commit
//                  the values that the daemon asked for -> window in shared memory
//
// The ring has `capacity` + 1 entries. A replay writes the entry that holds none of the newest
// `capacity` values, so these stay whole until its leaf has counted it. A reader copies a value and
// then reads the count: if the value is still one of the newest `capacity`, the copy is whole.
//
// A trigger that holds for a replay freezes all rings of the process on that device: the staging
// kernels of later replays copy nothing, and their leaves send no entry, until the daemon has read
// what it wants (FreezeLine, ThawLine in segment_layout.h). In the replay in which the trigger
// held, the probes behind it are still kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/capture/kernels/device_ring_kernels.h"

namespace cgdebug::capture {

// The ring of a slot with this registration, whose staging memory is `memory`.
DeviceRing RingOf(const layout::SlotRegistration& registration, void* memory);

// Copies the values of `ordinals` out of the slot's ring, on a stream of our own: the job's streams
// do not wait, and neither does the copy wait for them. Each result is whole, or empty if the ring
// has it no longer.
// Requires: the slot is pinned; the device of its ring can be used.
// Fails: throws ProbeError.
std::vector<std::vector<std::byte>> ReadDeviceRing(const ProbeSlot& slot,
                                                   const std::vector<std::uint64_t>& ordinals);

// Puts the values that the daemon asks for into the slot's window. Returns whether there was
// anything new to do. Requires: no replay is under way, and none begins meanwhile.
// Fails: throws ProbeError.
bool ServeWindow(ProbeSlot* slot);

// What the device has, and what of it nobody had some milliseconds ago. Fails: throws ProbeError.
// Thread: one at a time (the probe table's lock).
struct DeviceMemory {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
};
DeviceMemory MemoryOf(int device);

// Waits until nothing runs on the device. False if that takes longer than `patience`, or if the
// device cannot be used any more.
bool AwaitIdle(int device, std::chrono::nanoseconds patience) noexcept;

// Whether the slot has a ring in device memory.
inline bool IsOnDevice(const ProbeSlot& slot) {
  return (slot.registration.flags & layout::kSlotOnDevice) != 0;
}

}  // namespace cgdebug::capture
