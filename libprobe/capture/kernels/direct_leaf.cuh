// direct_leaf.cuh: what the leaves of the direct lane share: copies with a checksum, statistics of
// staged values by a whole grid, and the live control's trigger.
#pragma once

#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/kernels/direct_replay.cuh"
#include "libprobe/capture/kernels/grid_overlap.cuh"
#include "libprobe/capture/kernels/tensor_stats.cuh"

namespace cgdebug::capture {

// --- copying -----------------------------------------------------------------------------------

__device__ inline std::uint64_t SumWord(std::uint32_t word, std::uint64_t index) {
  return static_cast<std::uint64_t>(word) * static_cast<std::uint32_t>(2 * index + 1);
}

__device__ inline std::uint64_t SumVector(uint4 v, std::uint64_t index) {
  return SumWord(v.x, 4 * index) + SumWord(v.y, 4 * index + 1) + SumWord(v.z, 4 * index + 2) +
         SumWord(v.w, 4 * index + 3);
}

// Adds up `mine` over the block; thread 0 gets the sum.
__device__ inline std::uint64_t SumInBlock(std::uint64_t mine) {
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
inline constexpr int kCopyBatch = 8;

// Copies vectors start, start + stride, ... below `whole`.
__device__ inline std::uint64_t CopyVectors(const uint4* source, uint4* target, std::uint64_t whole,
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
__device__ inline std::uint32_t Keep(std::uint32_t word, int bytes) {
  if (bytes >= 4) return word;
  return bytes <= 0 ? 0 : word & ((1u << 8 * bytes) - 1);
}
__device__ inline uint4 KeepFirst(const uint4& v, int bytes) {
  return {Keep(v.x, bytes), Keep(v.y, bytes - 4), Keep(v.z, bytes - 8), Keep(v.w, bytes - 12)};
}

// Copies `bytes` from device memory (aligned to 16, readable to the next 16) to an entry's payload
// and returns this thread's part of the checksum. Writes zeros behind the payload. A block that
// sends alone lets the next leaf start half way: it does not fill the link, but two do.
__device__ inline std::uint64_t CopyOut(const std::byte* from, std::byte* to, std::uint64_t bytes,
                                        std::uint64_t start, std::uint64_t stride) {
  const auto* source = reinterpret_cast<const uint4*>(from);
  auto* target = reinterpret_cast<uint4*>(to);
  const std::uint64_t whole = bytes / 16;
  const std::uint64_t batch = kCopyBatch * stride;
  const std::uint64_t half = (whole / 2 + batch - 1) / batch * batch;
  std::uint64_t sum = 0;
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    const std::uint64_t end = part == 0 && half < whole ? half : whole;
    sum += CopyVectors(source, target, end, start + part * half, stride);
    if (gridDim.x == 1 && threadIdx.x == 0) LetNextGridStart();
  }
  const int rest = static_cast<int>(bytes % 16);
  if (rest != 0 && start == 0) {
    const uint4 last = KeepFirst(source[whole], rest);
    target[whole] = last;
    sum += SumVector(last, whole);
  }
  return sum;
}

// --- statistics --------------------------------------------------------------------------------

// If a trigger waits for it: whether these statistics differ from those of the replay before. They
// are equal for equal tensors, because the parts are always added in the same order.
__device__ inline bool NoteChange(DirectState* state, layout::ControlTrigger registered,
                                  const layout::DeviceStats& stats) {
  if (registered != layout::ControlTrigger::kChanged &&
      state->control.trigger != layout::ControlTrigger::kChanged) {
    state->digest.is_known = 0;
    return false;
  }
  const auto* words = reinterpret_cast<const std::uint64_t*>(&stats);
  std::uint64_t digest = 0xcbf29ce484222325;
  for (unsigned i = 0; i < sizeof(stats) / sizeof(*words); ++i) {
    digest = (digest ^ words[i]) * 0x100000001b3;
    digest ^= digest >> 29;
  }
  const bool changed = state->digest.is_known != 0 && digest != state->digest.value;
  state->digest.value = digest;
  state->digest.is_known = 1;
  return changed;
}

__device__ inline bool TriggerHolds(const layout::SlotControl& control,
                                    const layout::DeviceStats& stats, bool changed) {
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
    case layout::ControlTrigger::kChanged:
      return changed;
    case layout::ControlTrigger::kMismatch:
      return false;
    case layout::ControlTrigger::kNone:
      return true;
  }
  return true;
}

// Copies 128 bytes from shared memory into the entry; returns this thread's part of the checksum.
__device__ inline std::uint64_t SendStats(const layout::DeviceStats& stats, std::byte* to) {
  if (threadIdx.x >= sizeof(stats) / 16) return 0;
  const uint4 vector = reinterpret_cast<const uint4*>(&stats)[threadIdx.x];
  reinterpret_cast<uint4*>(to)[threadIdx.x] = vector;
  return SumVector(vector, threadIdx.x);
}

// --- leaves ------------------------------------------------------------------------------------

// The leaves of a capture follow one another: side by side, they would take multiprocessors from
// the compute path. A small leaf lets the next one start once it has room in its ring, a large one
// when it has sent half of its values.
inline constexpr std::uint64_t kOverlapBytes = 64 << 10;

// Part `index`, which another multiprocessor may have written: read past the first-level cache.
__device__ inline layout::DeviceStats LoadPart(const layout::DeviceStats* parts, unsigned index) {
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

// Statistics of vectors start, start + stride, ... of a tensor. Every thread of the block calls it;
// thread 0 gets the sum.
template <typename Type>
__device__ layout::DeviceStats ComputeInBlock(const std::byte* tensor, std::uint64_t count,
                                              std::uint64_t start, std::uint64_t stride,
                                              layout::DeviceStats* warps) {
  Part<Type> part(ShiftOf<Type>(tensor, count));
  const Span<typename Type::Raw> span(tensor, count);
  part.AddAll(typename Part<Type>::First(span, start, stride), span, start, stride);
  return ReduceInBlock(part.Result(count), warps);
}

// Statistics of the staged tensor, with all blocks. Every thread calls it. Returns true in the last
// block to finish, whose thread 0 gets the sum in *total.
template <typename Type>
__device__ bool ComputeInGrid(const LeafArgs& args, layout::DeviceStats* warps,
                              layout::DeviceStats* total) {
  __shared__ bool last;
  *total = ComputeInBlock<Type>(args.staging, args.count,
                                std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                                std::uint64_t{gridDim.x} * blockDim.x, warps);
  if (gridDim.x == 1) return true;
  if (threadIdx.x == 0) {
    args.parts[blockIdx.x] = *total;
    __threadfence();
    last = atomicInc(&args.slot.state->now.blocks_done, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return false;
  layout::DeviceStats mine = LoadPart(args.parts, threadIdx.x < gridDim.x ? threadIdx.x : 0);
  if (threadIdx.x >= gridDim.x) Empty(&mine);
  *total = ReduceInBlock(mine, warps);
  return true;
}

// Adds up parts that the grid before has written. Every thread of the block calls it; thread 0 gets
// the sum. Requires: part_count > 0.
__device__ inline layout::DeviceStats SumParts(const layout::DeviceStats* parts,
                                               unsigned part_count, layout::DeviceStats* warps) {
  layout::DeviceStats mine = parts[0];
  if (threadIdx.x != 0) Empty(&mine);
  for (unsigned i = threadIdx.x == 0 ? blockDim.x : threadIdx.x; i < part_count; i += blockDim.x) {
    AddPart(&mine, parts[i]);
  }
  return ReduceInBlock(mine, warps);
}

// A grid has ended when all of its blocks have, so one of them waits for the earlier grids.
__device__ inline void EndBlock() {
  if (blockIdx.x == 0 && threadIdx.x == 0) WaitForGridsBefore();
}

}  // namespace cgdebug::capture
