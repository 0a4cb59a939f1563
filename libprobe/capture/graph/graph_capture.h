// graph_capture.h: the graph that a stream is capturing, and what the lanes do to it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libprobe/capture/graph/probe_slot.h"

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

// When a kernel of a graph may start: when the nodes that it follows have ended, or earlier, when
// they say so (griddepcontrol.launch_dependents). Then it must wait for them itself.
enum class Start : std::uint8_t {
  kBehindAll,
  kBesideLast,  // the stream's last nodes have ended
  kBesideAll,   // requires: these are kernels
};

// Adds a kernel that follows the stream's last nodes and `last`, if any.
cudaGraphNode_t AddKernelBehind(const CaptureInfo& info, cudaGraphNode_t last, Start start,
                                const cudaKernelNodeParams& kernel);

// Whether it is the body of a conditional node.
bool IsConditionalBody(cudaGraph_t graph);

// Makes the nodes of `graph` that follow no other node follow `head`, except those in `heads`.
void PutInFront(cudaGraph_t graph, cudaGraphNode_t head, const std::vector<cudaGraphNode_t>& heads);

// Ties the slot to the graph: its life learns when the graph and every exec made from it are gone.
// From here on the driver refers to `slot`, even if a later step throws.
void RetainByGraph(cudaGraph_t graph, ProbeSlot* slot);

}  // namespace cgdebug::capture
