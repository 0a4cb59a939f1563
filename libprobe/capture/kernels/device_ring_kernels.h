// device_ring_kernels.h: the arguments of the kernels of rings in device memory. device_ring.h says
// how they work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libprobe/capture/kernels/direct_kernels.h"
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
  std::uint64_t from_stride;           // as StageArgs
};
const void* DeviceStageKernel(int unit);   // void(DeviceStageArgs), kStageThreads
const void* DeviceGatherKernel(int unit);  // likewise; a unit is an element

// The arguments for a slot whose statistics may be wanted. In replays that want them, one pass over
// the tensor copies it and computes parts as StatsKernel does. `from` is aligned to 16.
struct DeviceStatsArgs {
  DeviceStageArgs stage;
  bool always;  // computes them also where DirectState::Next::computes does not say so
  std::uint64_t count;
  layout::DeviceStats* parts;
};
const void* DeviceStatsKernel(layout::Dtype dtype);  // void(DeviceStatsArgs), kStatsThreads
const void* DeviceTensorCoreStatsKernel();           // likewise, as TensorCoreStatsKernel

struct DeviceLeafArgs {
  DirectSlot slot;
  DeviceRing ring;
  std::uint64_t bytes;
  std::uint64_t count;
  // For DeviceStatsLeafKernel: those of DeviceStatsKernel, and how many.
  const layout::DeviceStats* parts;
  std::uint32_t part_count;
  layout::DeviceWindow* window;
  const layout::WindowRequest* request;
  std::byte* window_payload;
  layout::FreezeLine* freeze;      // of the device; null if it has none (kMaxFreezeDevices)
  const layout::ThawLine* thaw;    // likewise
  double threshold;                // of `trigger`
  layout::ControlTrigger trigger;  // as registered
  std::uint32_t trigger_times;     // likewise
  bool hash;
  bool starts_early;  // as StatsLeafArgs
};
// Computes the statistics itself.
const void* DeviceLeafKernel(layout::Dtype dtype);  // void(DeviceLeafArgs), a block of kLeafThreads
// Behind DeviceStatsKernel. A block of 512 threads would wait for a multiprocessor that the job's
// kernels leave empty, and keep it from them.
const void* DeviceStatsLeafKernel();  // void(DeviceLeafArgs), one block of kStatsLeafThreads

}  // namespace cgdebug::capture
