#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/graph/staging_layout.h"
#include "libprobe/capture/lane/lane_call.h"

namespace cgdebug::capture {
namespace {

// Up to so many bytes of a stable tensor the leaf computes the statistics, where a kernel in front
// of it would take longer to begin than to read.
constexpr std::uint64_t kStableLeafBytes = 256ull << 10;
constexpr std::uint64_t kStableLeafBytesPerBlock = kStableLeafBytes / kMostLeafBlocks;

// `node` runs a kernel of statistics, and the stream's next node will be another one.
void SetFollowed(void* node) {
  auto* const graph_node = static_cast<cudaGraphNode_t>(node);
  cudaKernelNodeParams params = {};
  CGD_CUDA(cudaGraphKernelNodeGetParams(graph_node, &params));
  StatsArgs args = *static_cast<const StatsArgs*>(params.kernelParams[0]);
  args.followed = true;
  void* arguments[] = {&args};
  params.kernelParams = arguments;
  CGD_CUDA(cudaGraphKernelNodeSetParams(graph_node, &params));
}

void AddSmallStableLeaf(const LaneCall& call, std::uint64_t bytes) {
  const int blocks = BlocksFor(bytes, kStableLeafBytesPerBlock, kMostLeafBlocks);
  LeafArgs leaf = {};
  leaf.slot = call.direct;
  leaf.staging = call.from();
  leaf.bytes = bytes;
  leaf.count = ElementCount(call.registration());
  leaf.parts = call.slot->TakeParts(static_cast<std::uint64_t>(blocks), call.device.index);
  leaf.hash = call.hashes();
  leaf.only_stats = true;
  call.leaves.AddLeaf(GetCaptureInfo(call.stream),
                      {LeafKernel(call.tensor.dtype), blocks, kLeafThreads}, leaf);
}

StatsLeafArgs StatsLeafOf(const LaneCall& call, const SharedParts& parts) {
  StatsLeafArgs leaf = {};
  leaf.slot = call.direct;
  leaf.parts = parts.parts;
  leaf.part_count = parts.part_count;
  leaf.hash = call.hashes();
  return leaf;
}

// Adds a leaf that reads parts which the kernel of another slot computes.
void Share(SharedParts* shared, const LaneCall& call) {
  // Before there is a leaf that reads them, the kernel knows that it must not leave them out.
  const DirectState* const state = call.direct.state;
  call.device.Write(&shared->last_sharer->next_sharer, &state, sizeof(state));
  shared->last_sharer = call.direct.state;
  call.slot->parts = shared->memory;
  // The leaves before it on the same branch follow the kernel, so the compute path needs no further
  // edge.
  CaptureInfo info = GetCaptureInfo(call.stream);
  const LeafBranches::Branch* const branch = call.leaves.Find(info.id);
  if (branch != nullptr && branch->number == shared->branch) info.dependency_count = 0;
  call.leaves.AddLeaf(info, {StatsLeafKernel(), 1, kStatsLeafThreads}, StatsLeafOf(call, *shared));
}

}  // namespace

void CaptureStats(const LaneCall& call, PartsHere* here) {
  const layout::SlotRegistration& r = call.registration();
  const bool is_staged = !call.Has(layout::kSlotUnstaged);
  const std::uint64_t bytes = TensorBytes(r);
  if (!is_staged && bytes <= kStableLeafBytes) return AddSmallStableLeaf(call, bytes);
  const StatsGrid grid = call.device.GridOfStats(call.tensor.dtype, bytes);
  SharedParts computed;
  computed.data = call.tensor.data;
  computed.count = ElementCount(r);
  computed.dtype = call.tensor.dtype;
  computed.counted = call.slot->counted.get();
  computed.last_sharer = call.direct.state;
  computed.part_count = grid.parts();
  const std::uint64_t capture_id = GetCaptureInfo(call.stream).id;
  const Position before = PositionOf(call.stream);
  SharedParts* const shared = is_staged ? here->Find(capture_id, before, computed) : nullptr;
  if (shared != nullptr) return Share(shared, call);
  computed.parts = call.slot->TakeParts(grid.parts(), call.device.index);
  computed.memory = call.slot->parts;
  StatsArgs args = {};
  args.from = call.from();
  args.count = computed.count;
  args.parts = computed.parts;
  args.state = call.direct.state;
  const void* const kernel =
      grid.on_tensor_cores ? TensorCoreStatsKernel() : StatsKernel(call.tensor.dtype);
  StatsLeafArgs leaf = StatsLeafOf(call, computed);
  const LeafBranches::Kernel leaf_kernel = {StatsLeafKernel(), 1, kStatsLeafThreads};
  if (!is_staged) {
    const cudaGraphNode_t front = call.leaves.AddInFront(
        GetCaptureInfo(call.stream), {kernel, grid.blocks, kStatsThreads}, args);
    return call.leaves.AddLeaf(GetCaptureInfo(call.stream), leaf_kernel, leaf, front);
  }
  args.follows = here->IsAt(capture_id, before);
  if (args.follows) SetFollowed(before.nodes.front());
  Launch(kernel, grid.blocks, kStatsThreads, &args, call.stream, call.device.overlaps);
  leaf.starts_early = grid.starts_leaf_early();
  call.leaves.AddLeaf(GetCaptureInfo(call.stream), leaf_kernel, leaf, nullptr,
                      leaf.starts_early ? Start::kBesideAll : Start::kBesideLast);
  computed.branch = call.leaves.Find(capture_id)->number;
  here->Add(capture_id, before, PositionOf(call.stream), computed);
}

}  // namespace cgdebug::capture
