// node_kind.h: what the kinds of nodes of a graph are called, and what they do to memory.
#pragma once

#include <cuda_runtime_api.h>

#include "libprobe/capture/cuda_check.h"

namespace cgdebug::capture {

// Fails: throws ProbeError.
inline cudaGraphNodeType TypeOf(cudaGraphNode_t node) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  CGD_CUDA(cudaGraphNodeGetType(node, &type));
  return type;
}

inline const char* KindOf(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeMemcpy:
      return "memcpy";
    case cudaGraphNodeTypeMemset:
      return "memset";
    case cudaGraphNodeTypeHost:
      return "host_function";
    case cudaGraphNodeTypeEmpty:
      return "empty";
    case cudaGraphNodeTypeGraph:
      return "child_graph";
    case cudaGraphNodeTypeConditional:
      return "conditional_node";
    case cudaGraphNodeTypeMemAlloc:
    case cudaGraphNodeTypeMemFree:
      return "memory_node";
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeWaitEvent:
      return "event_node";
    default:
      return "node";
  }
}

// Not: what does nothing, and what signals or awaits others.
inline bool MayTouchMemory(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeEmpty:
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeWaitEvent:
    case cudaGraphNodeTypeExtSemaphoreSignal:
    case cudaGraphNodeTypeExtSemaphoreWait:
      return false;
    default:
      return true;
  }
}

// Nor what allocates or frees memory.
inline bool MayWrite(cudaGraphNodeType type) {
  return MayTouchMemory(type) && type != cudaGraphNodeTypeMemAlloc &&
         type != cudaGraphNodeTypeMemFree;
}

}  // namespace cgdebug::capture
