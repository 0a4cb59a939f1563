// held_memory.h: what slots hold, and how it is given back: shared memory, their place in the
// directory, buffers.
#pragma once

#include <cstdint>
#include <map>

#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/slots/probe_registry.h"
#include "libprobe/slots/store/process_segment.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class HeldMemory {
 public:
  // Both outlive it.
  HeldMemory(const ProbeRegistry* probes, ProcessSegment* segment)
      : probes_(probes), segment_(segment) {}

  void NotePublished(const capture::ProbeSlot& slot);
  // Gives back what its graph's nodes needed.
  void FreeBuffers(capture::ProbeSlot& slot);
  // Gives back everything. Keeps what a comparison found, and counts what nobody has looked at.
  void Free(capture::ProbeSlot& slot);

  std::uint32_t published() const { return published_; }
  // How many bytes of that device the slots with values in device memory take.
  std::uint64_t BytesOnDevice(int device) const;
  const ReadState& freed_gaps() const { return freed_gaps_; }  // of freed slots

 private:
  void KeepVerdict(const capture::ProbeSlot& slot) const;

  const ProbeRegistry* probes_;
  ProcessSegment* segment_;
  std::uint32_t published_ = 0;
  std::map<int, std::uint64_t> on_device_bytes_;  // by device
  ReadState freed_gaps_;
};

}  // namespace cgdebug
