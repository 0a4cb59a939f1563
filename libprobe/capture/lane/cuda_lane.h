// cuda_lane.h: the callback lane, and what both lanes need from CUDA. In a build without CUDA no
// stream is ever capturing, and what needs a GPU throws.
#pragma once

#include <cstdint>
#include <optional>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/probe_slot.h"

namespace cgdebug::capture {

struct StreamCapture {
  bool capturing = false;
  std::uint64_t id = 0;  // unique over the lifetime of the process
};

// Fails: throws ProbeError, also if an earlier error invalidated the stream's capture.
StreamCapture QueryCapture(void* stream);

// Nodes of the graph that `stream` is capturing, or of the cudaGraph_t `graph`; nullopt if CUDA
// does not say. Takes time in proportion to their number.
std::optional<std::uint64_t> CountNodesOfCapture(void* stream) noexcept;
std::optional<std::uint64_t> CountNodes(void* graph) noexcept;

// Memory for one slot of the lane that `kind` names. Legal during a capture in any mode, in any
// thread.
// Fails: throws ProbeError kSystem.
Buffers AllocateBuffers(std::uint64_t bytes, int device, Buffers::Kind kind);
// Gives them back for reuse, without a call to CUDA. Requires: no graph and no queued callback uses
// them.
void FreeBuffers(const Buffers& buffers) noexcept;
// How much device memory they have taken, unused memory included.
std::uint64_t DeviceBytes() noexcept;
// Frees unused memory if there is much of it. May wait until the device is idle, so it must not be
// called in an eager call or with the probe table's mutex.
void TrimBuffers() noexcept;

void SetFallbackAllocator(const DeviceAllocator& allocator);

// Adds the callback lane to the graph that `stream` is capturing:
//   compute path:  D2D into staging
//   leaf:          staging -> pinned -> host callback     (no join; the stream's dependencies stay)
// and ties the slot to the graph's lifetime.
// Fails: throws ProbeError kUnsupported inside a conditional body, else kSystem; the graph then
//        holds at most the two copies.
void CaptureLeaf(ProbeSlot* slot, const TensorRef& tensor, void* stream);

// The same in eager mode, in stream order: tensor -> pinned -> host callback. `call`, `step`: as in
// EagerLook.
void LaunchEager(ProbeSlot* slot, const TensorRef& tensor, std::uint64_t call, std::int64_t step,
                 void* stream);

}  // namespace cgdebug::capture
