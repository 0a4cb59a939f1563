// Statistics of many tensors in one launch: each block computes a part of a tensor, and the last
// one of the tensor adds the parts up to its row.
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/kernels/direct_replay.cuh"
#include "libprobe/capture/kernels/grid_overlap.cuh"
#include "libprobe/capture/kernels/tensor_stats.cuh"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::capture {
namespace {

constexpr int kWarps = kOpLogThreads / 32;

// The order of the tensor that this block reads, with what divides by its sizes (Granlund and
// Montgomery, "Division by invariant integers using multiplication", 1994, figure 4.1).
struct BlockOrder {
  struct Dimension {
    std::uint32_t size, stride, multiplier, shift;
  };
  Dimension dimensions[ElementOrder::kMaxDimensions];
  bool is_permuted;
};

// In shared memory, because few tensors are permuted.
__device__ BlockOrder* OrderOfBlock() {
  __shared__ BlockOrder order;
  return &order;
}

// Every thread of the block calls it.
__device__ void SetOrderOfBlock(const OpLogBatch::Tensor& tensor) {
  BlockOrder* const order = OrderOfBlock();
  if (threadIdx.x == 0) order->is_permuted = tensor.is_permuted;
  if (tensor.is_permuted && threadIdx.x < ElementOrder::kMaxDimensions) {
    const std::uint32_t size = tensor.order.sizes[threadIdx.x];
    const auto shift = static_cast<std::uint32_t>(32 - __clz(static_cast<int>(size - 1)));
    const std::uint64_t above = (std::uint64_t{1} << shift) - size;
    order->dimensions[threadIdx.x] = {size, tensor.order.strides[threadIdx.x],
                                      static_cast<std::uint32_t>((above << 32) / size + 1), shift};
  }
  __syncthreads();
}

// How many elements lie in front of the tail that this block reads.
__device__ std::uint64_t* LeftOutOfBlock() {
  __shared__ std::uint64_t left_out;
  return &left_out;
}

// Every thread of the block calls it. The rows lie one behind another in memory, so the elements of
// the tail do, in the order of the whole.
__device__ void SetLeftOutOfBlock(const OpLogBatch& batch, std::uint32_t tensor) {
  if (threadIdx.x == 0) {
    const std::int64_t start = *const_cast<const volatile std::int64_t*>(batch.tail_start);
    const std::uint64_t row = batch.elements_of_row[tensor];
    const std::uint64_t rows = batch.tensors[tensor].count / row;
    *LeftOutOfBlock() = start <= 0 ? 0 : min(static_cast<std::uint64_t>(start), rows) * row;
  }
  __syncthreads();
}

// Rows are read once and in large numbers, so they must not push what the job will read out of the
// caches.
struct StreamReader {
  static constexpr int kGroup = 2;
  __device__ static uint4 Load(const uint4* from) { return __ldcs(from); }
  __device__ static bool IsPermuted() { return OrderOfBlock()->is_permuted; }
  __device__ static std::uint32_t StepInVectors(std::uint32_t elements) {
    const BlockOrder& order = *OrderOfBlock();
    const BlockOrder::Dimension& fastest = order.dimensions[0];
    return order.is_permuted && fastest.size % elements == 0 ? fastest.stride : 0;
  }
  __device__ static std::uint64_t PlaceOf(std::uint64_t index) {
    const BlockOrder& order = *OrderOfBlock();
    if (!order.is_permuted) return index;
    // Such a tensor has fewer than 2^32 elements.
    auto left = static_cast<std::uint32_t>(index);
    std::uint32_t place = 0;
#pragma unroll 1
    for (const BlockOrder::Dimension& d : order.dimensions) {
      const std::uint32_t high = __umulhi(d.multiplier, left);
      const std::uint32_t more = d.shift == 0 ? left - high : (left - high) >> 1;
      const std::uint32_t quotient = (high + more) >> (d.shift == 0 ? 0 : d.shift - 1);
      place += (left - quotient * d.size) * d.stride;
      left = quotient;
    }
    return place;
  }
};

// The part of one block, by warp.
template <typename Type>
__device__ __noinline__ void ComputeWarps(const OpLogBatch::Tensor& tensor, std::uint64_t start,
                                          std::uint64_t stride, layout::DeviceStats* warps) {
  using OpLogPart = Part<Type, StreamReader>;
  const std::uint64_t left_out = tensor.is_tail ? *LeftOutOfBlock() : 0;
  const std::byte* const from = tensor.from + left_out * sizeof(typename Type::Raw);
  const std::uint64_t count = tensor.count - left_out;
  const Span<typename Type::Raw> span(from, count);
  const typename OpLogPart::First first(span, start, stride);
  SetOrderOfBlock(tensor);
  OpLogPart part(ShiftOf<Type>(from, count));
  part.AddAll(first, span, start, stride);
  StoreWarpSum(part, count, warps + threadIdx.x / 32);
}

__device__ void ComputeAnyWarps(const OpLogBatch::Tensor& tensor, std::uint64_t start,
                                std::uint64_t stride, layout::DeviceStats* warps) {
  using layout::Dtype;
  switch (static_cast<Dtype>(tensor.dtype)) {
#define CGDEBUG_COMPUTE(name, number, torch, text, short_name, bits, ...)                      \
  case Dtype::k##name:                                                                         \
    return ComputeWarps<typename ElementOf<Dtype::k##name, bits>::Type>(tensor, start, stride, \
                                                                        warps);
    CGDEBUG_DTYPES(CGDEBUG_COMPUTE)
#undef CGDEBUG_COMPUTE
    case Dtype::kInvalid:
      break;
  }
}

__device__ std::uint32_t EndOf(const OpLogBatch& batch, std::uint32_t tensor) {
  return tensor + 1 < batch.count ? batch.tensors[tensor + 1].first_block : batch.blocks;
}

// Tells that everything before this launch is done. Nothing waits for these stores until the kernel
// ends.
__device__ void TellReached(const RowsHead& rows, std::uint64_t replay, std::uint32_t launch) {
  if (rows.head == nullptr) return;
  Store(rows.head->reached, layout::ReachedWord(replay, launch));
  Store(rows.head->reached_ns, GlobalTimer() + static_cast<std::uint64_t>(rows.clock_offset_ns));
}

// By a block that read a part of the tensor.
__device__ void StoreRow(const OpLogBatch& batch, std::uint32_t tensor, layout::DeviceStats stats) {
  if (batch.tensors[tensor].is_tail && stats.first_nonfinite != ~std::uint64_t{0}) {
    // Its place in the whole tensor.
    stats.first_nonfinite += StreamReader::PlaceOf(*LeftOutOfBlock()) * 4;
  }
  Close(&stats, /*hash=*/true);
  layout::DeviceStats* const to = batch.rows + batch.tensors[tensor].row;
  const std::uint64_t flags = stats.flags;
  if (batch.to_host) stats.flags = 0;
  *to = stats;
  if (!batch.to_host) return;
  __threadfence_system();
  Store(to->flags, flags);
}

// By one warp, when all parts of the tensor are there.
__device__ void AddParts(const OpLogBatch& batch, std::uint32_t tensor) {
  const std::uint32_t begin = batch.tensors[tensor].first_block;
  const std::uint32_t end = EndOf(batch, tensor);
  layout::DeviceStats mine = batch.parts[begin];
  if (threadIdx.x != 0) Empty(&mine);
  for (std::uint32_t i = begin + (threadIdx.x == 0 ? 32 : threadIdx.x); i < end; i += 32) {
    AddPart(&mine, batch.parts[i]);
  }
  for (int offset = 16; offset > 0; offset /= 2) AddPart(&mine, FromLane(mine, offset));
  if (threadIdx.x == 0) StoreRow(batch, tensor, mine);
}

__global__ void __launch_bounds__(kOpLogThreads, kOpLogBlocksPerMultiprocessor)
    OpLogParts(const __grid_constant__ OpLogBatch batch) {
  __shared__ layout::DeviceStats warps[kWarps];
  // Decided by the replay before this one, so there is nothing to wait for.
  const std::uint32_t skip = *const_cast<const volatile std::uint32_t*>(&batch.state->next.skip);
  const bool tells = blockIdx.x == 0 && threadIdx.x == 0;
  RowsHead rows = {};
  std::uint64_t replay = 0;
  if (tells) {
    rows = batch.state->page.rows;
    replay = batch.state->replay + 1;
  }
  std::uint32_t first = 0;
  for (std::uint32_t last = batch.count; last - first > 1;) {
    const std::uint32_t middle = (first + last) / 2;
    (batch.tensors[middle].first_block <= blockIdx.x ? first : last) = middle;
  }
  WaitForGridsBefore();
  if (tells) TellReached(rows, replay, batch.launch);
  if (skip != 0) return;
  const OpLogBatch::Tensor& tensor = batch.tensors[first];
  const std::uint64_t blocks = EndOf(batch, first) - tensor.first_block;
  if (tensor.is_tail) SetLeftOutOfBlock(batch, first);
  ComputeAnyWarps(tensor,
                  std::uint64_t{blockIdx.x - tensor.first_block} * kOpLogThreads + threadIdx.x,
                  blocks * kOpLogThreads, warps);
  // Not before all is read: a kernel of the job may write before it waits.
  LetNextGridStart();
  __syncthreads();
  if (threadIdx.x >= 32) return;
  layout::DeviceStats mine = warps[threadIdx.x % kWarps];
  for (int offset = kWarps / 2; offset > 0; offset /= 2) AddPart(&mine, FromLane(mine, offset));
  if (blocks == 1) {
    if (threadIdx.x == 0) StoreRow(batch, first, mine);
    return;
  }
  std::uint32_t before = 0;  // blocks of the tensor that are done
  if (threadIdx.x == 0) {
    batch.parts[blockIdx.x] = mine;
    __threadfence();
    // The last one sets it to 0, for the next batch.
    before =
        atomicInc(&batch.state->page.blocks_done[first], static_cast<std::uint32_t>(blocks) - 1);
  }
  if (__shfl_sync(0xffffffffu, before, 0) != blocks - 1) return;
  __threadfence();
  __syncwarp();  // what thread 0 has found, the others may read
  AddParts(batch, first);
}

}  // namespace

const void* OpLogPartsKernel() { return reinterpret_cast<const void*>(&OpLogParts); }

}  // namespace cgdebug::capture
