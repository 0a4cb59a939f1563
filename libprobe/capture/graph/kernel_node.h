// kernel_node.h: what a node of a graph runs, if it is a kernel.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <string>

namespace cgdebug::capture {

// Nothing for a node that is no kernel; blocks of no thread if CUDA does not tell.
// Fails: throws ProbeError.
std::optional<CUDA_KERNEL_NODE_PARAMS> KernelOf(cudaGraphNode_t node);

// The name of such a kernel in its module; empty if CUDA does not tell.
std::string SymbolOf(const CUDA_KERNEL_NODE_PARAMS& kernel);

}  // namespace cgdebug::capture
