// device_ring_kernels.h: the arguments of the kernels of rings in device memory. device_ring.h says
// how they work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libprobe/capture/direct_kernels.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::capture {

// Where one slot's ring lies, as its device addresses it.
struct DeviceRing {
  std::byte* entries;
  std::uint64_t stride_bytes;  // a multiple of 256
  std::uint32_t capacity;      // promised entries; there is one more
};

// On the compute path: as StageArgs.
struct DeviceStageArgs {
  const std::byte* from;
  std::uint64_t bytes;
  DeviceRing ring;
  DirectState* state;
  const DirectGate* gate;
  const std::uint64_t* shared_serial;  // as DirectSlot
};
const void* DeviceStageKernel(int unit);  // void(DeviceStageArgs), kStageThreads

struct DeviceLeafArgs {
  DirectSlot slot;
  DeviceRing ring;
  std::uint64_t bytes;
  std::uint64_t count;
  layout::DeviceStats* parts;  // one per block, if there are several
  layout::DeviceWindow* window;
  const layout::WindowRequest* request;
  std::byte* window_payload;
  layout::FreezeLine* freeze;
  const layout::ThawLine* thaw;
  double threshold;                // of `trigger`
  layout::ControlTrigger trigger;  // as registered
  std::uint32_t sending_blocks;    // as LeafArgs
  std::uint32_t sending_threads;
  bool hash;
};
const void* DeviceLeafKernel(layout::Dtype dtype);  // void(DeviceLeafArgs), kLeafThreads

}  // namespace cgdebug::capture
