// lane_access.h: whether a device can use the direct lane: it needs our kernels, and shared memory
// that is mapped into it.
#pragma once

#include <optional>
#include <string>

#include "libprobe/ring/segment/segment_writer.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::capture {

struct LaneRefusal {
  layout::LaneReason reason = layout::LaneReason::kNone;
  std::string text;  // what prevents it, and what to do
};

// Why the device cannot use the lane; nullopt if it can. Determined once per device, then
// remembered. Memory that MapForDevice() could not lock cannot be locked for the next probe either.
// Thread: one at a time (the probe table's lock), like all calls here.
std::optional<LaneRefusal> DirectLaneRefused(int device);

// Registers the memory of the slot's block with CUDA, once per extent.
// Fails: throws ProbeError if CUDA fails for any reason other than that it cannot lock memory.
std::optional<LaneRefusal> MapForDevice(const ring::SegmentWriter& segment,
                                        const ring::Block& block, int device);

}  // namespace cgdebug::capture
