#include "libprobe/capture/lane/op_log_lane.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {
namespace {

// Most blocks of a batch: as many as run at once on 132 multiprocessors; a large batch may have
// four times that. Each block leaves one part.
constexpr std::uint64_t kMostBlocks = std::uint64_t{132} * kOpLogBlocksPerMultiprocessor;
constexpr std::uint64_t kMostBlocksOfLarge = 4 * kMostBlocks;
constexpr std::uint64_t kLeastBytesOfBlock = 16u << 10;

static_assert(kMostOpLogTensors == std::size(OpLogBatch{}.tensors));
static_assert(kMostOpLogTensors == std::size(DirectState{}.blocks_done_of_row));

std::uint64_t BytesOf(const OpLogTensor& tensor) {
  return tensor.count * layout::DtypeBytes(tensor.dtype);
}

std::uint64_t DivideUp(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// No block reads more than the others that are full: a batch takes as long as its slowest block.
// Each tensor has one block that is not full, at most.
OpLogBatch MakeBatch(layout::DeviceStats* page, layout::DeviceStats* parts, DirectState* state,
                     std::span<const OpLogTensor> tensors) {
  OpLogBatch batch = {};
  batch.rows = page;
  batch.parts = parts != nullptr ? parts : page + kOpLogRowsOfPage;
  const std::uint64_t most_blocks = parts != nullptr ? kMostBlocksOfLarge : kMostBlocks;
  batch.state = state;
  std::uint64_t bytes = 0;
  for (const OpLogTensor& tensor : tensors) bytes += BytesOf(tensor);
  const std::uint64_t bytes_of_block =
      std::max(DivideUp(bytes, most_blocks - tensors.size()), kLeastBytesOfBlock);
  for (const OpLogTensor& tensor : tensors) {
    OpLogBatch::Tensor& to = batch.tensors[batch.count++];
    to.from = static_cast<const std::byte*>(tensor.data);
    to.count = tensor.count;
    to.first_block = batch.blocks;
    to.row = static_cast<std::uint16_t>(tensor.row);
    to.dtype = static_cast<std::uint8_t>(tensor.dtype);
    to.is_permuted = tensor.order.has_value();
    if (tensor.order) to.order = *tensor.order;
    batch.blocks += static_cast<std::uint32_t>(
        std::max<std::uint64_t>(DivideUp(BytesOf(tensor), bytes_of_block), 1));
  }
  return batch;
}

}  // namespace

std::uint64_t OpLogPageParts() { return kOpLogRowsOfPage + kMostBlocks; }
std::uint64_t OpLogLargeParts() { return kMostBlocksOfLarge; }
std::uint64_t ScratchBytesOfRows() {
  return sizeof(DirectState) + OpLogLargeParts() * sizeof(layout::DeviceStats);
}

void ComputeRowsNow(void* rows, void* scratch, std::span<const OpLogTensor> tensors, int device,
                    void* stream) {
  const DeviceGuard guard(device);
  auto* const state = static_cast<DirectState*>(scratch);
  OpLogBatch batch = MakeBatch(static_cast<layout::DeviceStats*>(rows),
                               reinterpret_cast<layout::DeviceStats*>(state + 1), state, tensors);
  Launch(OpLogPartsKernel(), static_cast<int>(batch.blocks), kOpLogThreads, &batch,
         static_cast<cudaStream_t>(stream), /*overlaps=*/false);
}

Position ComputeRows(layout::DeviceStats* page, layout::DeviceStats* parts, DirectState* state,
                     std::span<const OpLogTensor> tensors, std::uint32_t launch, int device,
                     void* stream_handle, const Position& at) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  const Position now = PositionOf(stream);
  OpLogBatch batch = MakeBatch(page, parts, state, tensors);
  batch.launch = launch;
  const bool overlaps = GridsOverlap(device);
  if (now != at) SetPosition(stream, at);
  try {
    Launch(OpLogPartsKernel(), static_cast<int>(batch.blocks), kOpLogThreads, &batch, stream,
           overlaps);
  } catch (...) {
    if (now != at) SetPosition(stream, now);
    throw;
  }
  Position done = PositionOf(stream);
  if (now != at) {
    SetPosition(stream, now);
    Join(stream, done);
  }
  return done;
}

}  // namespace cgdebug::capture
