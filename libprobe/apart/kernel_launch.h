// kernel_launch.h: a kernel of a graph, launched without a graph.
#pragma once

#include <cuda_runtime_api.h>

namespace cgdebug::apart {

// Launches the kernel of `node` on `stream` as a graph with that node alone would, and keeps
// nothing. False, and nothing is launched: it is no kernel, or CUDA does not tell all of it.
// Requires: the graph of `node` stays as it is until the call returns. Fails: throws ProbeError.
bool LaunchKernel(cudaGraphNode_t node, cudaStream_t stream);

// Whether LaunchKernel() launches it.
bool CanLaunchKernel(cudaGraphNode_t node);

// Whether kernels may change what the kernel of `node` is given, and so reach its graph.
bool IsUpdatedByKernels(cudaGraphNode_t node);

}  // namespace cgdebug::apart
