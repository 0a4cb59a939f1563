// The kernels of the direct lane.
//
// Host memory is written with plain stores and published by one fence at system scope followed by a
// store; the GPU never reads, modifies and writes there. The last block of the grid commits. Each
// entry carries a checksum, so that a store that never became visible is detected.
#include "libprobe/capture/direct_kernels.h"
#include "libprobe/capture/direct_replay.cuh"
#include "libprobe/capture/grid_overlap.cuh"
#include "libprobe/capture/tensor_stats.cuh"

namespace cgdebug::capture {
namespace {

// --- copying -----------------------------------------------------------------------------------

__device__ std::uint64_t SumWord(std::uint32_t word, std::uint64_t index) {
  return static_cast<std::uint64_t>(word) * static_cast<std::uint32_t>(2 * index + 1);
}

__device__ std::uint64_t SumVector(uint4 v, std::uint64_t index) {
  return SumWord(v.x, 4 * index) + SumWord(v.y, 4 * index + 1) + SumWord(v.z, 4 * index + 2) +
         SumWord(v.w, 4 * index + 3);
}

// Adds up `mine` over the block; thread 0 gets the sum.
__device__ std::uint64_t SumInBlock(std::uint64_t mine) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int offset = 16; offset > 0; offset /= 2) mine += FromLane(mine, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(&total, static_cast<unsigned long long>(mine));
  __syncthreads();
  return total;
}

// Loads that each thread keeps in flight. One block then writes as fast as one multiprocessor can,
// which is four fifths of the link. Through shared memory (cp.async) it was a third slower.
constexpr int kCopyBatch = 8;

// Copies vectors start, start + stride, ... below `whole`.
__device__ std::uint64_t CopyVectors(const uint4* source, uint4* target, std::uint64_t whole,
                                     std::uint64_t start, std::uint64_t stride) {
  std::uint64_t sum = 0;
  std::uint64_t i = start;
  for (; i + (kCopyBatch - 1) * stride < whole; i += kCopyBatch * stride) {
    uint4 batch[kCopyBatch];
#pragma unroll
    for (int k = 0; k < kCopyBatch; ++k) batch[k] = __ldcs(source + i + k * stride);
#pragma unroll
    for (int k = 0; k < kCopyBatch; ++k) {
      target[i + k * stride] = batch[k];
      sum += SumVector(batch[k], i + k * stride);
    }
  }
#pragma unroll 4
  for (; i < whole; i += stride) {
    const uint4 vector = source[i];
    target[i] = vector;
    sum += SumVector(vector, i);
  }
  return sum;
}

// The first `bytes` bytes of a word, followed by zeros.
__device__ std::uint32_t Keep(std::uint32_t word, int bytes) {
  if (bytes >= 4) return word;
  return bytes <= 0 ? 0 : word & ((1u << 8 * bytes) - 1);
}

// Copies `bytes` from device memory (aligned to 16, readable to the next 16) to an entry's payload
// and returns this thread's part of the checksum. Writes zeros behind the payload.
__device__ std::uint64_t CopyOut(const std::byte* from, std::byte* to, std::uint64_t bytes,
                                 std::uint64_t start, std::uint64_t stride) {
  const auto* source = reinterpret_cast<const uint4*>(from);
  auto* target = reinterpret_cast<uint4*>(to);
  const std::uint64_t whole = bytes / 16;
  std::uint64_t sum = CopyVectors(source, target, whole, start, stride);
  const int rest = static_cast<int>(bytes % 16);
  if (rest != 0 && start == 0) {
    const uint4 v = source[whole];
    const uint4 last = {Keep(v.x, rest), Keep(v.y, rest - 4), Keep(v.z, rest - 8),
                        Keep(v.w, rest - 12)};
    target[whole] = last;
    sum += SumVector(last, whole);
  }
  return sum;
}

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
  if (args.state->skip != 0) return;
  if (i < count) to[i] = ahead;
#pragma unroll 4
  for (i += stride; i < count; i += stride) to[i] = from[i];
}

// --- statistics --------------------------------------------------------------------------------

// One part per warp. The leaf adds the parts up, off the compute path.
template <typename Type>
__global__ void __launch_bounds__(kStatsThreads) Stats(StatsArgs args) {
  const std::uint64_t start = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  // Decided by the replay before this one, so there is nothing to wait for.
  const std::uint32_t skip = *const_cast<const volatile std::uint32_t*>(&args.state->skip);
  WaitForGridsBefore();
  const std::uint64_t vector_count = args.vectors ? args.count / Part<Type>::kPerVector : 0;
  const Ahead ahead(args.from, vector_count, start, stride);
  Part<Type> part(ShiftOf<Type>(args.from, args.count));
  if (skip != 0) return;
  part.AddAll(ahead, args.from, args.count, args.vectors, start, stride);
  StoreWarpSum(part, args.count, args.parts + start / 32);
}

__device__ bool TriggerHolds(const layout::SlotControl& control, const layout::DeviceStats& stats) {
  const bool nonfinite = stats.nan + stats.pos_inf + stats.neg_inf != 0;
  const double abs_max = fmax(fabs(stats.min), fabs(stats.max));
  const bool any_finite = stats.min <= stats.max;
  switch (control.trigger) {
    case layout::ControlTrigger::kNonfinite:
      return nonfinite;
    case layout::ControlTrigger::kInf:
      return stats.pos_inf + stats.neg_inf != 0;
    case layout::ControlTrigger::kAbsMax:
      return nonfinite || (any_finite && abs_max > control.threshold);
    case layout::ControlTrigger::kNone:
      return true;
  }
  return true;
}

// Copies 128 bytes from shared memory into the entry; returns this thread's part of the checksum.
__device__ std::uint64_t SendStats(const layout::DeviceStats& stats, std::byte* to) {
  if (threadIdx.x >= sizeof(stats) / 16) return 0;
  const uint4 vector = reinterpret_cast<const uint4*>(&stats)[threadIdx.x];
  reinterpret_cast<uint4*>(to)[threadIdx.x] = vector;
  return SumVector(vector, threadIdx.x);
}

// --- leaves ------------------------------------------------------------------------------------

// The leaves of a capture follow one another: side by side, those that fill the link would take it
// from the compute path. A small leaf lets the next one start once it has room in its ring, a large
// one when its last store is in flight.
constexpr std::uint64_t kOverlapBytes = 64 << 10;

__device__ bool Computes(Outcome outcome) {
  return outcome == Outcome::kStats || outcome == Outcome::kTriggered;
}

// Part `index`, which another multiprocessor may have written: read past the first-level cache.
__device__ layout::DeviceStats LoadPart(const layout::DeviceStats* parts, unsigned index) {
  union {
    uint4 vectors[sizeof(layout::DeviceStats) / sizeof(uint4)];
    layout::DeviceStats part;
  } copy;
  const auto* from = reinterpret_cast<const uint4*>(parts + index);
  for (unsigned i = 0; i < sizeof(copy.vectors) / sizeof(uint4); ++i) {
    copy.vectors[i] = __ldcg(from + i);
  }
  return copy.part;
}

// Statistics of the staged tensor, with all blocks. Every thread calls it. Returns true in the last
// block to finish, whose thread 0 gets the sum in *total.
template <typename Type>
__device__ bool ComputeInGrid(const LeafArgs& args, layout::DeviceStats* warps,
                              layout::DeviceStats* total) {
  __shared__ bool last;
  const std::uint64_t start = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  Part<Type> part(ShiftOf<Type>(args.staging, args.count));
  const Ahead ahead(args.staging, args.count / Part<Type>::kPerVector, start, stride);
  part.AddAll(ahead, args.staging, args.count, /*vectors=*/true, start, stride);
  *total = ReduceInBlock(part.Result(args.count), warps);
  if (gridDim.x == 1) return true;
  if (threadIdx.x == 0) {
    args.parts[blockIdx.x] = *total;
    __threadfence();
    last = atomicInc(&args.slot.state->blocks_done, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return false;
  layout::DeviceStats mine = LoadPart(args.parts, threadIdx.x < gridDim.x ? threadIdx.x : 0);
  if (threadIdx.x >= gridDim.x) Empty(&mine);
  *total = ReduceInBlock(mine, warps);
  return true;
}

// A grid has ended when all of its blocks have, so one of them waits for the earlier grids.
__device__ void EndBlock() {
  if (blockIdx.x == 0 && threadIdx.x == 0) WaitForGridsBefore();
}

template <typename Type>
__global__ void __launch_bounds__(kLeafThreads) Leaf(LeafArgs args) {
  __shared__ layout::DeviceStats warps[kLeafThreads / 32];
  __shared__ __align__(16) layout::DeviceStats stats;
  __shared__ Plan plan;
  __shared__ HostWords words;
  __shared__ bool send_values;
  DirectState* state = args.slot.state;
  const bool sends = blockIdx.x < args.sending_blocks;
  if (threadIdx.x == 0) {
    plan = MakePlan(args.slot);
    if (plan.outcome == Outcome::kFull && sends) Claim(args.slot, plan, blockIdx.x == 0);
    if (args.bytes <= kOverlapBytes && !Computes(plan.outcome)) LetNextGridStart();
  }
  HostWords read = {};
  if (threadIdx.x == 32 && sends) read = ReadHostWords(args.slot);
  __syncthreads();
  const bool computes = Computes(plan.outcome);
  std::uint64_t sum = 0;
  if (!computes && !sends) {
    if (threadIdx.x == 0 && AddToGrid(state, /*wrote=*/false, &sum)) {
      Finish(args.slot, plan, ReadHostWords(args.slot), sum);
    }
    return;
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
      const bool wanted =
          plan.outcome == Outcome::kTriggered && TriggerHolds(state->control, total);
      // A tensor smaller than its statistics is sent as values.
      send_values = wanted || args.bytes < sizeof(stats);
      state->sent = wanted ? kSentValues : send_values ? kSentUnwanted : kSentStats;
      Claim(args.slot, plan, /*counts=*/true);
    }
    __syncthreads();
    sum = send_values ? CopyOut(args.staging, plan.payload, args.bytes, threadIdx.x, blockDim.x)
                      : SendStats(stats, plan.payload);
  } else if (plan.outcome == Outcome::kFull && threadIdx.x < args.sending_threads) {
    sum = CopyOut(args.staging, plan.payload, args.bytes,
                  std::uint64_t{blockIdx.x} * args.sending_threads + threadIdx.x,
                  std::uint64_t{args.sending_blocks} * args.sending_threads);
  }
  if (threadIdx.x == 32) words = sends ? read : ReadHostWords(args.slot);
  sum = SumInBlock(sum);
  if (threadIdx.x == 0) {
    LetNextGridStart();
    const bool wrote = plan.outcome != Outcome::kSkip;
    if (computes || AddToGrid(state, wrote, &sum)) Finish(args.slot, plan, words, sum);
  }
  EndBlock();
}

__global__ void __launch_bounds__(kStatsLeafThreads) StatsLeaf(StatsLeafArgs args) {
  __shared__ layout::DeviceStats warps[kStatsLeafThreads / 32];
  __shared__ __align__(16) layout::DeviceStats stats;
  __shared__ Plan plan;
  __shared__ HostWords words;
  DirectState* state = args.slot.state;
  if (threadIdx.x == 0) {
    plan = MakePlan(args.slot);
    if (plan.outcome != Outcome::kSkip) Claim(args.slot, plan, /*counts=*/true);
    LetNextGridStart();
  }
  HostWords read = {};
  if (threadIdx.x == 32) read = ReadHostWords(args.slot);
  __syncthreads();
  std::uint64_t sum = 0;
  if (plan.outcome != Outcome::kSkip) {
    layout::DeviceStats mine = args.parts[0];
    if (threadIdx.x != 0) Empty(&mine);
    for (unsigned i = threadIdx.x == 0 ? blockDim.x : threadIdx.x; i < args.part_count;
         i += blockDim.x) {
      AddPart(&mine, args.parts[i]);
    }
    const layout::DeviceStats total = ReduceInBlock(mine, warps);
    if (threadIdx.x == 0) {
      stats = total;
      Close(&stats, args.hash);
      state->sent = kSentStats;
    }
    __syncthreads();
    sum = SendStats(stats, plan.payload);
  }
  if (threadIdx.x == 32) words = read;
  sum = SumInBlock(sum);
  if (threadIdx.x != 0) return;
  Finish(args.slot, plan, words, sum);
  WaitForGridsBefore();
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
  const std::uint64_t last = *args.shared_serial;
  const std::uint64_t now = GlobalTimer() + static_cast<std::uint64_t>(args.serial_offset_ns);
  *args.shared_serial = now > last ? now : last + 1;
}

template <template <typename> class Kernel>
const void* ForDtype(layout::Dtype dtype) {
  using layout::Dtype;
  switch (dtype) {
#define CGDEBUG_KERNEL(name, number, torch, text, short_name, bits, floating, ...) \
  case Dtype::k##name: {                                                           \
    using Type = typename ElementOf<Dtype::k##name, bits>::Type;                   \
    static_assert(Type::kFloating == floating);                                    \
    return Kernel<Type>::Get();                                                    \
  }
    CGDEBUG_DTYPES(CGDEBUG_KERNEL)
#undef CGDEBUG_KERNEL
    case Dtype::kInvalid:
      break;
  }
  return nullptr;
}

template <typename Type>
struct LeafOf {
  static const void* Get() { return reinterpret_cast<const void*>(&Leaf<Type>); }
};
template <typename Type>
struct StatsOf {
  static const void* Get() { return reinterpret_cast<const void*>(&Stats<Type>); }
};

}  // namespace

const void* LeafKernel(layout::Dtype dtype) { return ForDtype<LeafOf>(dtype); }
const void* StatsKernel(layout::Dtype dtype) { return ForDtype<StatsOf>(dtype); }
const void* StatsLeafKernel() { return reinterpret_cast<const void*>(&StatsLeaf); }
const void* ClockKernel() { return reinterpret_cast<const void*>(&Clock); }
const void* TickKernel() { return reinterpret_cast<const void*>(&Tick); }

const void* StageKernel(int unit) {
  switch (unit) {
    case 16:
      return reinterpret_cast<const void*>(&Stage<uint4>);
    case 8:
      return reinterpret_cast<const void*>(&Stage<std::uint64_t>);
    case 4:
      return reinterpret_cast<const void*>(&Stage<std::uint32_t>);
    case 2:
      return reinterpret_cast<const void*>(&Stage<std::uint16_t>);
    default:
      return reinterpret_cast<const void*>(&Stage<std::uint8_t>);
  }
}

}  // namespace cgdebug::capture
