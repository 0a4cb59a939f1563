#include <algorithm>
#include <bit>
#include <limits>

#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/graph/staging_layout.h"
#include "libprobe/capture/lane/lane_call.h"

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kMostStageBlocks = 1024;

// The most bytes, up to 16, of which both the address and the size are a multiple.
int UnitOf(const void* from, std::uint64_t bytes) {
  const std::uint64_t alignment = reinterpret_cast<std::uintptr_t>(from) | bytes;
  return 1 << std::min(std::countr_zero(alignment | 16), 4);
}

// All of `args` but `from_stride`.
void LaunchStage(const LaneCall& call, StageArgs args) {
  const StageGrid grid = StageGrid::Of(call.tensor, args.bytes);
  args.from_stride = call.tensor.element_stride;
  Launch(grid.gathers ? GatherKernel(grid.unit) : StageKernel(grid.unit), grid.blocks,
         kStageThreads, &args, call.stream, call.device.overlaps);
}

// Stages the tensor, and compares it on the device.
void LaunchCompare(const LaneCall& call, const StageArgs& stage) {
  const layout::SlotRegistration& r = call.registration();
  const int blocks = CompareBlocks(r.payload_bytes);
  const ProbeSlot* reference = call.slot->reference;
  std::byte* expected =
      reference == nullptr ? call.Staging(call.slot->staging.expected) : reference->staged;
  CompareState* const compare = call.direct.compare;
  const cudaStream_t set_up = call.device.stream;
  CGD_CUDA(cudaMemsetAsync(compare, 0, call.slot->staging.compare_bytes, set_up));
  const CompareState start = {0, 0, expected, static_cast<std::uint64_t>(blocks), {}};
  CGD_CUDA(cudaMemcpyAsync(compare, &start, offsetof(CompareState, findings),
                           cudaMemcpyHostToDevice, set_up));
  if (call.slot->expected != nullptr) {
    CGD_CUDA(cudaMemcpyAsync(expected, call.slot->expected->data, r.payload_bytes,
                             cudaMemcpyHostToDevice, set_up));
  }
  CGD_CUDA(cudaStreamSynchronize(set_up));
  constexpr double kMargin = 1 - 0x1p-20;
  constexpr double kMost = std::numeric_limits<float>::max();
  CompareArgs args = {};
  args.from = stage.from;
  args.expected = expected;
  args.to = stage.to;
  args.count = ElementCount(r);
  args.rtol = r.compare_rtol;
  args.atol = r.compare_atol;
  args.sure_rtol = static_cast<float>(std::min(r.compare_rtol * kMargin, kMost));
  args.sure_atol = static_cast<float>(std::min(r.compare_atol * kMargin, kMost)) - 0x1p-120f;
  args.equal_nan = call.Has(layout::kCompareEqualNan);
  args.bitwise = call.Has(layout::kCompareBitwise);
  args.vectors = reinterpret_cast<std::uintptr_t>(stage.from) % 16 == 0;
  args.first = call.Has(layout::kCompareFirst);
  args.scalar = r.dims == 0;
  args.state = call.direct.state;
  args.compare = compare;
  // The other probe's copy comes first, also if another stream made it.
  const bool joins = reference != nullptr && reference->staged_on != call.stream;
  if (joins) Join(call.stream, reference->staged_by);
  Launch(CompareKernel(call.tensor.dtype), blocks, kCompareThreads, &args, call.stream,
         call.device.overlaps && !joins);
}

}  // namespace

// One unit per thread is fastest up to some MiB. Beyond, starting blocks costs more than loops.
StageGrid StageGrid::Of(const TensorRef& tensor, std::uint64_t bytes) {
  StageGrid grid;
  grid.gathers = tensor.element_stride != 1;
  grid.unit = grid.gathers ? static_cast<int>(layout::DtypeBytes(tensor.dtype))
                           : UnitOf(tensor.data, bytes);
  grid.blocks =
      BlocksFor(bytes, static_cast<std::uint64_t>(grid.unit) * kStageThreads, kMostStageBlocks);
  return grid;
}

void CaptureCopy(const LaneCall& call) {
  StageArgs args = {};
  args.from = call.from();
  args.to = call.Staging(call.slot->staging.copy);
  args.bytes = TensorBytes(call.registration());
  args.state = call.device.never_skips;
  LaunchStage(call, args);
  call.slot->staged = args.to;
  call.slot->staged_on = call.stream;
  call.slot->staged_by = PositionOf(call.stream);
}

void CaptureValues(const LaneCall& call) {
  const layout::SlotRegistration& r = call.registration();
  StageArgs args = {};
  args.from = call.from();
  args.to = call.Staging(0);
  args.bytes = r.payload_bytes;
  args.state = call.direct.state;
  const bool is_staged = !call.Has(layout::kSlotUnstaged | layout::kSlotHoldsOpLog);
  if (call.direct.compare != nullptr) {
    LaunchCompare(call, args);
  } else if (is_staged) {
    LaunchStage(call, args);
  }
  LeafArgs leaf = {};
  leaf.slot = call.direct;
  leaf.staging = is_staged ? args.to : args.from;
  leaf.bytes = r.payload_bytes;
  leaf.count = ElementCount(r);
  leaf.hash = call.hashes();
  cudaGraphNode_t front = nullptr;
  if (call.direct.skips_unchanged) {
    const HashArgs hash = {leaf.staging, leaf.bytes, call.direct.state};
    front = call.leaves.AddInFront(GetCaptureInfo(call.stream),
                                   {HashKernel(), call.device.HashBlocks(leaf.bytes), kHashThreads},
                                   hash);
  }
  call.leaves.AddLeaf(GetCaptureInfo(call.stream), {LeafKernel(call.tensor.dtype), 1, kLeafThreads},
                      leaf, front);
}

}  // namespace cgdebug::capture
