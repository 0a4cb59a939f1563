// graph_capture.h: the graph that a stream is capturing, and what the lanes do to it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

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

// Whether it is the body of a conditional node.
bool IsConditionalBody(cudaGraph_t graph);

// Makes the nodes of `graph` that follow no other node follow `head`, except those in `heads`.
void PutInFront(cudaGraph_t graph, cudaGraphNode_t head, const std::vector<cudaGraphNode_t>& heads);

// Ties the slot to the graph: its life learns when the graph and every exec made from it are gone.
// From here on the driver refers to `slot`, even if a later step throws.
void RetainByGraph(cudaGraph_t graph, ProbeSlot* slot);

}  // namespace cgdebug::capture
