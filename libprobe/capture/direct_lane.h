// direct_lane.h: the lane without host nodes: a kernel copies from the probe's staging straight
// into the ring, which is mapped into the GPU, and commits.
//
//   compute path:  copy into staging             (or: statistics of the tensor itself)
//   leaf:          staging -> ring entry, commit (or: 128 bytes of statistics)
//
// Why chained: the leaves of a capture follow one another on one branch. Side by side they spread
// over the hardware's queues and, when the link is what limits, hold back the compute path.
//
// Why no host node: all host nodes of a process run on one driver thread, and a graph that has any
// makes cudaGraphLaunch block for about a replay.
#pragma once

#include <optional>
#include <string>

#include "cgdebug/probe.h"
#include "libprobe/capture/probe_slot.h"
#include "libprobe/ring/segment_writer.h"

namespace cgdebug::capture {

struct LaneRefusal {
  layout::LaneReason reason = layout::LaneReason::kNone;
  std::string text;  // what stands in the way, and what to do
};

// Why the device cannot take part; nullopt when it can. Asked once a device, then remembered.
// Thread: one at a time (the probe table's mutex), as all calls here.
std::optional<LaneRefusal> DirectLaneRefused(int device);

// Registers the memory of the slot's block with CUDA, once an extent. A refusal is remembered:
// memory that cannot be locked now will not be lockable for the next probe.
// Fails: throws Error when CUDA fails for another reason than that the memory cannot be locked.
std::optional<LaneRefusal> MapForDevice(const ring::SegmentWriter& segment,
                                        const ring::Block& block, int device);

// Bytes of device memory that a slot of this registration wants as staging.
std::uint64_t DirectStagingBytes(const layout::SlotRegistration& registration, int device);

// Adds the lane to the graph that `stream` is capturing, and ties the slot to the graph's lifetime.
// Requires: the slot's block is mapped, its registration complete, its buffers of kind kDirect.
// Fails: throws Error; the graph then holds at most the kernel on the compute path.
void CaptureDirect(ProbeSlot* slot, const ring::SegmentWriter& segment, const TensorRef& tensor,
                   void* stream, bool prefer_link);

}  // namespace cgdebug::capture
