// lane_call.h: one call of a probe in a capture, and the nodes that it adds to the graph, by what
// leaves the device: values, statistics, or a header alone, for values that stay in a ring.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/lane/lane_device.h"
#include "libprobe/capture/lane/leaf_branches.h"
#include "libprobe/capture/lane/shared_parts.h"
#include "libprobe/ring/segment/segment_writer.h"

namespace cgdebug::capture {

struct LaneCall {
  const LaneDevice& device;
  LeafBranches& leaves;
  const ring::SegmentWriter& segment;
  ProbeSlot* slot;
  const TensorRef& tensor;
  cudaStream_t stream;
  DirectSlot direct = {};  // the slot, as its device addresses it

  const layout::SlotRegistration& registration() const { return slot->registration; }
  bool Has(std::uint32_t flag) const { return (slot->registration.flags & flag) != 0; }
  bool hashes() const { return !Has(layout::kStatsWithoutHash); }
  const std::byte* from() const { return static_cast<const std::byte*>(tensor.data); }
  // `offset`: of the slot's StagingLayout.
  std::byte* Staging(std::uint64_t offset) const {
    return static_cast<std::byte*>(slot->buffers.staging) + offset;
  }
};

// How a kernel of kStageThreads copies the elements of a tensor.
struct StageGrid {
  int unit = 0;          // bytes that a thread copies at a time
  bool gathers = false;  // they do not lie side by side: a unit is an element
  int blocks = 0;

  static StageGrid Of(const TensorRef& tensor, std::uint64_t bytes);
};

// All of these fail with ProbeError.

// Whether the kernel that stages the values of a ring on the device also computes parts of their
// statistics, in replays that want them. The leaf has one block, which takes long to read a large
// tensor.
bool StagesParts(const layout::SlotRegistration& registration);

// A copy for the probes that are compared with this one (StagingLayout::copy).
void CaptureCopy(const LaneCall& call);
void CaptureValues(const LaneCall& call);
// The values stay in device memory (device_ring.h).
void CaptureRing(const LaneCall& call);
// `here`: of the device.
void CaptureStats(const LaneCall& call, PartsHere* here);

}  // namespace cgdebug::capture
