#include "libprobe/slots/store/held_memory.h"

#include <algorithm>
#include <utility>

#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/slots/slot_queries.h"
#include "libprobe/slots/store/all_slots.h"

namespace cgdebug {

using capture::ProbeSlot;

void HeldMemory::NotePublished(const ProbeSlot& slot) {
  ++published_;
  segment_->writer()->ShowDeviceBytes(capture::DeviceBytes());
  if (capture::IsOnDevice(slot)) {
    on_device_bytes_[slot.buffers.device] += slot.registration.device_bytes;
  }
}

void HeldMemory::FreeBuffers(ProbeSlot& slot) {
  if (slot.reader && slot.buffers.staging != nullptr && capture::IsOnDevice(slot)) {
    on_device_bytes_[slot.buffers.device] -= slot.registration.device_bytes;
  }
  capture::FreeBuffers(slot.buffers);
  slot.buffers = {};
  slot.parts.reset();
}

void HeldMemory::Free(ProbeSlot& slot) {
  if (slot.reader) {
    KeepVerdict(slot);
    AddGaps(slot, &freed_gaps_);
    freed_gaps_.lost += Unread(slot);
  }
  FreeBuffers(slot);
  if (slot.reader) {
    --published_;
    segment_->writer()->Release(slot.index, slot.block);
  } else {
    if (slot.has_index) segment_->writer()->Unreserve(slot.index);
    if (slot.block.data != nullptr) segment_->writer()->Free(slot.block);
  }
  slot.expected.reset();
}

// Keeps what a comparison found, or that none was made.
void HeldMemory::KeepVerdict(const ProbeSlot& slot) const {
  if (!slot.evicted || (slot.registration.actions & layout::kActionCompare) == 0) return;
  const auto probe = probes_->Find(slot.probe_id);
  if (probe == nullptr) return;
  SlotStatus status = StatusOf(slot);
  status.lost += status.accepted - std::min(status.accepted, status.consumed);
  status.consumed = status.accepted;
  const auto same = std::find_if(
      probe->evicted.begin(), probe->evicted.end(),
      [&](const SlotStatus& other) { return other.verdict.state == status.verdict.state; });
  if (same == probe->evicted.end()) {
    probe->evicted.push_back(std::move(status));
  } else {
    Add(status, &*same);
  }
}

std::uint64_t HeldMemory::BytesOnDevice(int device) const {
  const auto found = on_device_bytes_.find(device);
  return found == on_device_bytes_.end() ? 0 : found->second;
}

}  // namespace cgdebug
