// The kernels of the direct lane.
//
// Host memory is written with plain stores and published by one fence at system scope followed by a
// store; the GPU never reads, modifies and writes there. The last block of the grid commits. Each
// entry carries a checksum, so that a store that never became visible is detected.
#include "libprobe/capture/kernels/compare_findings.cuh"
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/kernels/direct_leaf.cuh"
#include "libprobe/capture/kernels/direct_replay.cuh"
#include "libprobe/capture/kernels/element_types.cuh"
#include "libprobe/capture/kernels/grid_overlap.cuh"
#include "libprobe/capture/kernels/tensor_core_sums.cuh"
#include "libprobe/capture/kernels/tensor_stats.cuh"

namespace cgdebug::capture {
namespace {

// --- staging -----------------------------------------------------------------------------------

template <typename Unit>
__global__ void __launch_bounds__(kStageThreads) Stage(StageArgs args) {
  WaitForGridsBefore();
  const auto* from = reinterpret_cast<const Unit*>(args.from);
  auto* to = reinterpret_cast<Unit*>(args.to);
  const std::uint64_t count = args.bytes / sizeof(Unit);
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // Starts loading the tensor before it is known whether anybody wants it: one latency instead of
  // two.
  Unit ahead = {};
  if (i < count) ahead = from[i];
  if (args.state->next.skip != 0) return;
  if (i < count) to[i] = ahead;
#pragma unroll 4
  for (i += stride; i < count; i += stride) to[i] = from[i];
}

template <typename Unit>
__global__ void __launch_bounds__(kStageThreads) Gather(StageArgs args) {
  WaitForGridsBefore();
  if (args.state->next.skip != 0) return;
  const auto* from = reinterpret_cast<const Unit*>(args.from);
  auto* to = reinterpret_cast<Unit*>(args.to);
  const std::uint64_t count = args.bytes / sizeof(Unit);
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    to[i] = from[i * args.from_stride];
  }
}

// --- statistics --------------------------------------------------------------------------------

// Whether a slot behind the one with `state` reads its parts in this replay.
__device__ bool SharerWants(const DirectState* state) {
  while ((state = state->next_sharer) != nullptr) {
    if (*const_cast<const volatile std::uint32_t*>(&state->next.skip) == 0) return true;
  }
  return false;
}

// Computes this thread's part. Returns false if nobody wants it.
//
// Kernels of statistics with nothing between them read side by side, because all of their tensors
// were written before the first one. That one waits before it lets the next one start, so the
// others need not wait. The last one lets a kernel of the job start only when all of them have
// read: such a kernel may write before it waits.
template <typename Ahead, typename Type>
__device__ bool ComputePart(const StatsArgs& args, Part<Type>* part) {
  const std::uint64_t start = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  // Decided by the replay before this one, so there is nothing to wait for.
  const std::uint32_t skip = *const_cast<const volatile std::uint32_t*>(&args.state->next.skip);
  if (!args.follows) WaitForGridsBefore();
  if (args.followed) LetNextGridStart();
  Ahead ahead(Span<typename Type::Raw>(args.from, args.count), start, stride);
  *part = Part<Type>(ShiftOf<Type>(args.from, args.count));
  if (skip != 0 && !SharerWants(args.state)) return false;
  ahead.AddTo(part);
  if (!args.followed) {
    WaitForGridsBefore();
    LetNextGridStart();
  }
  return true;
}

// One part per warp. The leaf adds the parts up, off the compute path.
template <typename Type>
__global__ void __launch_bounds__(kStatsThreads, kStatsBlocksPerMultiprocessor)
    Stats(StatsArgs args) {
  Part<Type> part(0);
  if (ComputePart<ThreadVectors<Type>>(args, &part)) {
    const unsigned warp = (blockIdx.x * kStatsThreads + threadIdx.x) / 32;
    StoreWarpSumAtOnce(part, args.count, args.parts + warp);
  }
  EndBlock();
}

// One part per block.
__global__ void __launch_bounds__(kStatsThreads, kTensorCoreBlocksPerMultiprocessor)
    TensorCoreStats(StatsArgs args) {
  __shared__ LanesOfBlock<kStatsThreads> lanes;
  Part<Bfloat16> part(0);
  if (ComputePart<WarpGroups<kTensorCoreVectors>>(args, &part)) {
    StoreBlockSum<kStatsThreads>(part, args.count, lanes, args.parts + blockIdx.x);
  }
  EndBlock();
}

// --- leaves ------------------------------------------------------------------------------------

__device__ bool ComputesStats(const LeafArgs& args, Outcome outcome) {
  return args.only_stats ? outcome != Outcome::kSkip : Computes(outcome);
}

template <typename Type>
__global__ void __launch_bounds__(kLeafThreads) Leaf(LeafArgs args) {
  __shared__ layout::DeviceStats warps[kLeafThreads / 32];
  __shared__ __align__(16) layout::DeviceStats stats;
  __shared__ Plan plan;
  __shared__ HostWords words;
  __shared__ bool send_values;
  DirectState* state = args.slot.state;
  const bool sends = blockIdx.x == 0;  // the values; the other blocks then end at once
  if (threadIdx.x == 0) {
    plan = MakePlan(args.slot);
    const bool sends_now = plan.outcome == Outcome::kFull && !args.only_stats;
    if (sends_now && sends) Claim(args.slot, plan, /*counts=*/true);
    // Leaves that compute run beside each other, because one block takes long to read a tensor.
    // Those that wait for room do so one after another, to leave the job its registers.
    const bool computes_now = args.only_stats || Computes(plan.outcome);
    const bool is_short = args.bytes <= kOverlapBytes || plan.unchanged;
    if (computes_now ? !MayWait(args.slot) : is_short) LetNextGridStart();
  }
  HostWords read = {};
  if (threadIdx.x == 32 && sends) read = ReadHostWords(args.slot);
  __syncthreads();
  const bool computes = ComputesStats(args, plan.outcome);
  std::uint64_t sum = 0;
  if (!computes && !sends) {
    if (threadIdx.x == 0 && AddToGrid(state, /*wrote=*/false, &sum)) {
      Finish(args.slot, plan, ReadHostWords(args.slot), sum);
    }
    return;
  }
  if (plan.failed && blockIdx.x == 0 && args.slot.compare->failed == 0) {
    TellFailure<Type>(args.slot, plan.replay, args.staging);
  }
  if (computes) {
    layout::DeviceStats total;
    if (!ComputeInGrid<Type>(args, warps, &total)) {
      EndBlock();
      return;
    }
    if (threadIdx.x == 0) {
      Close(&total, args.hash);
      stats = total;
      const bool changed = NoteChange(state, layout::ControlTrigger::kNone, total);
      const bool wanted =
          plan.outcome == Outcome::kTriggered && TriggerHolds(state->control, total, changed);
      // A tensor smaller than its statistics is sent as values.
      send_values = !args.only_stats && (wanted || args.bytes < sizeof(stats));
      state->now.sent = !send_values ? kSentStats : wanted ? kSentValues : kSentUnwanted;
      Claim(args.slot, plan, /*counts=*/true);
    }
    __syncthreads();
    sum = send_values ? CopyOut(args.staging, plan.payload, args.bytes, threadIdx.x, blockDim.x)
                      : SendStats(stats, plan.payload);
  } else if (plan.outcome == Outcome::kFull && !plan.unchanged && threadIdx.x < kSendingThreads) {
    sum = CopyOut(args.staging, plan.payload, args.bytes, threadIdx.x, kSendingThreads);
  }
  if (threadIdx.x == 32) words = sends ? read : ReadHostWords(args.slot);
  sum = SumInBlock(sum);
  if (threadIdx.x == 0) {
    LetNextGridStart();
    // Also of an unchanged tensor: each block has claimed the entry, and no such store may come
    // after the commit.
    const bool wrote = plan.outcome != Outcome::kSkip;
    if (computes || AddToGrid(state, wrote, &sum)) Finish(args.slot, plan, words, sum);
  }
  EndBlock();
}

// What the leaves of statistics do, by one block, every thread of which calls it.
struct StatsLeafMemory {
  layout::DeviceStats warps[kStatsLeafThreads / 32];
  __align__(16) layout::DeviceStats stats;
  Plan plan;
};
__device__ __forceinline__ void SendSumOfParts(const StatsLeafArgs& args, StatsLeafMemory* memory) {
  DirectState* state = args.slot.state;
  Plan& plan = memory->plan;
  if (threadIdx.x == 0) {
    plan = MakePlan(args.slot, args.call);
    if (plan.outcome != Outcome::kSkip) Claim(args.slot, plan, /*counts=*/true);
    LetNextGridStart();
  }
  __shared__ HostWords words;
  HostWords read = {};
  if (threadIdx.x == 32) read = ReadHostWords(args.slot);
  __syncthreads();
  std::uint64_t sum = 0;
  if (plan.outcome != Outcome::kSkip) {
    const layout::DeviceStats total = SumParts(args.parts, args.part_count, memory->warps);
    if (threadIdx.x == 0) {
      memory->stats = total;
      Close(&memory->stats, args.hash);
      state->now.sent = kSentStats;
    }
    __syncthreads();
    sum = SendStats(memory->stats, plan.payload);
  }
  if (threadIdx.x == 32) {
    words = read;
    if (args.call != 0) words.step = static_cast<std::uint64_t>(args.step_of_call);
  }
  sum = SumInBlock(sum);
  if (threadIdx.x == 0) Finish(args.slot, plan, words, sum);
}

__global__ void __launch_bounds__(kStatsLeafThreads) StatsLeaf(StatsLeafArgs args) {
  __shared__ StatsLeafMemory memory;
  if (args.starts_early) WaitForGridsBefore();
  SendSumOfParts(args, &memory);
  if (threadIdx.x == 0) WaitForGridsBefore();
}

// Apart, because it takes registers that the other blocks do not need.
__device__ __noinline__ void SendSumOfPartsApart(const StatsLeafArgs& args,
                                                 StatsLeafMemory* memory) {
  SendSumOfParts(args, memory);
}

// Both at once, for an eager call, where a leaf would hold up the stream: a part per block, and the
// last block adds them up.
template <typename Type>
__global__ void __launch_bounds__(kStatsThreads, kStatsBlocksPerMultiprocessor)
    EagerStats(const __grid_constant__ EagerStatsArgs args) {
  static_assert(kStatsThreads == kStatsLeafThreads);
  __shared__ StatsLeafMemory memory;
  __shared__ bool is_last;
  DirectState* state = args.leaf.slot.state;
  const std::uint32_t skip = *const_cast<const volatile std::uint32_t*>(&state->next.skip);
  WaitForGridsBefore();
  if (skip == 0) {
    const layout::DeviceStats part = ComputeInBlock<Type>(
        args.from, args.count, std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
        std::uint64_t{gridDim.x} * blockDim.x, memory.warps);
    if (threadIdx.x == 0) args.parts[blockIdx.x] = part;
  }
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicInc(&state->now.blocks_done, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last) SendSumOfPartsApart(args.leaf, &memory);
}

__global__ void Clock(std::uint64_t* now_ns) {
  *now_ns = GlobalTimer();
  __threadfence_system();
}

__global__ void Tick(TickArgs args) {
  RootTick& tick = *args.tick;
  const std::uint64_t replay = tick.replay + 1;
  for (std::uint64_t i = threadIdx.x; i < tick.head_count; i += blockDim.x) {
    Store(tick.heads[i]->graph_replays, replay);
  }
  __syncwarp();
  if (threadIdx.x != 0) return;
  tick.replay = replay;
  *args.shared_serial = NextSerial(args);
}

template <typename Type>
struct LeafOf {
  static const void* Get() { return reinterpret_cast<const void*>(&Leaf<Type>); }
};
template <typename Type>
struct StatsOf {
  static const void* Get() { return reinterpret_cast<const void*>(&Stats<Type>); }
};

template <typename Type>
struct EagerStatsOf {
  static const void* Get() { return reinterpret_cast<const void*>(&EagerStats<Type>); }
};

template <typename Unit>
struct StageOf {
  static const void* Get() { return reinterpret_cast<const void*>(&Stage<Unit>); }
};
template <typename Unit>
struct GatherOf {
  static const void* Get() { return reinterpret_cast<const void*>(&Gather<Unit>); }
};

}  // namespace

const void* LeafKernel(layout::Dtype dtype) { return KernelForDtype<LeafOf>(dtype); }
const void* StatsKernel(layout::Dtype dtype) { return KernelForDtype<StatsOf>(dtype); }
const void* TensorCoreStatsKernel() { return reinterpret_cast<const void*>(&TensorCoreStats); }
const void* StatsLeafKernel() { return reinterpret_cast<const void*>(&StatsLeaf); }
const void* EagerStatsKernel(layout::Dtype dtype) { return KernelForDtype<EagerStatsOf>(dtype); }
const void* ClockKernel() { return reinterpret_cast<const void*>(&Clock); }
const void* TickKernel() { return reinterpret_cast<const void*>(&Tick); }

const void* StageKernel(int unit) { return KernelForUnit<StageOf>(unit); }
const void* GatherKernel(int unit) { return KernelForUnit<GatherOf>(unit); }

}  // namespace cgdebug::capture
