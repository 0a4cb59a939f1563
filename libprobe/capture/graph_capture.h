// graph_capture.h: the graph that a stream is capturing, and what the lanes do to it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "libprobe/capture/probe_slot.h"

namespace cgdebug::capture {

struct CaptureInfo {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* dependencies = nullptr;  // until the next call on the stream
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t dependency_count = 0;
};

// All of them fail with ProbeError. Requires: relaxed capture mode where a capture is under way.
CaptureInfo GetCaptureInfo(cudaStream_t stream);

// Adds a kernel that follows the stream's last nodes and `last`, if any. With `overlap`, `last`
// decides when it may start (griddepcontrol.launch_dependents), and it must wait for `last` itself.
cudaGraphNode_t AddKernelBehind(const CaptureInfo& info, cudaGraphNode_t last, bool overlap,
                                const cudaKernelNodeParams& kernel);

// Applies to both lanes: CUDA allows no host node in such a body, and a kernel there would count
// runs of the body instead of replays.
// Fails: throws ProbeError kUnsupported inside the body of a conditional node.
void RefuseConditionalBody(const CaptureInfo& info);

// Ties the slot to the graph: its life learns when the graph and every exec made from it are gone.
// From here on the driver refers to `slot`, even if a later step throws.
void RetainByGraph(cudaGraph_t graph, ProbeSlot* slot);

}  // namespace cgdebug::capture
