// kernel_node.h: what a node of a graph runs, if it is a kernel.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <string>

namespace cgdebug::capture {

struct KernelNode {
  std::string symbol;  // empty: unknown
  CUDA_KERNEL_NODE_PARAMS params = {};
};

// Nothing for a node that is no kernel. Fails: throws ProbeError.
std::optional<KernelNode> KernelOf(cudaGraphNode_t node);

}  // namespace cgdebug::capture
