#include "libprobe/capture/graph/own_nodes.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/graph/graph_capture.h"
#include "libprobe/capture/graph/kernel_node.h"
#include "libprobe/capture/kernels/device_ring_kernels.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {
namespace {

// Where the only argument of a kernel has its slot's state, and the number of its batch.
struct Layout {
  const char* kernel;
  std::size_t state;
  std::optional<std::size_t> launch = {};
};
constexpr std::size_t kStateOfSlot = offsetof(DirectSlot, state);
constexpr Layout kLayouts[] = {
    {"Stage", offsetof(StageArgs, state)},
    {"Gather", offsetof(StageArgs, state)},
    {"Hash", offsetof(HashArgs, state)},
    {"Compare", offsetof(CompareArgs, state)},
    {"Stats", offsetof(StatsArgs, state)},
    {"TensorCoreStats", offsetof(StatsArgs, state)},
    {"Leaf", offsetof(LeafArgs, slot) + kStateOfSlot},
    {"StatsLeaf", offsetof(StatsLeafArgs, slot) + kStateOfSlot},
    {"DeviceStage", offsetof(DeviceStageArgs, state)},
    {"DeviceGather", offsetof(DeviceStageArgs, state)},
    {"DeviceStatsStage", offsetof(DeviceStatsArgs, stage) + offsetof(DeviceStageArgs, state)},
    {"DeviceTensorCoreStatsStage",
     offsetof(DeviceStatsArgs, stage) + offsetof(DeviceStageArgs, state)},
    {"DeviceLeaf", offsetof(DeviceLeafArgs, slot) + kStateOfSlot},
    {"DeviceStatsLeaf", offsetof(DeviceLeafArgs, slot) + kStateOfSlot},
    {"OpLogParts", offsetof(OpLogBatch, state), offsetof(OpLogBatch, launch)},
};

void ReadArguments(const CUDA_KERNEL_NODE_PARAMS& params, OwnNode* own) {
  if (params.kernelParams == nullptr || params.kernelParams[0] == nullptr) return;
  const auto* const bytes = static_cast<const std::byte*>(params.kernelParams[0]);
  for (const Layout& layout : kLayouts) {
    if (own->kernel != layout.kernel) continue;
    std::memcpy(&own->state, bytes + layout.state, sizeof(own->state));
    if (layout.launch) std::memcpy(&own->launch, bytes + *layout.launch, sizeof(own->launch));
  }
}

}  // namespace

std::vector<OwnNode> OwnNodesOf(void* handle) {
  const RelaxedCapture relaxed;
  const auto graph = static_cast<cudaGraph_t>(handle);
  std::size_t count = 0;
  CGD_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) CGD_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::vector<OwnNode> found;
  for (std::size_t i = 0; i < std::min(count, nodes.size()); ++i) {
    const std::optional<CUDA_KERNEL_NODE_PARAMS> kernel = KernelOf(nodes[i]);
    const std::string symbol = kernel ? SymbolOf(*kernel) : std::string();
    if (!IsOwnKernel(symbol)) continue;
    OwnNode own{.node = nodes[i], .place = i, .kernel = ShortKernelName(symbol)};
    ReadArguments(*kernel, &own);
    found.push_back(std::move(own));
  }
  return found;
}

}  // namespace cgdebug::capture
