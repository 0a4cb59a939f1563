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
constexpr std::uint64_t kRowBytes = sizeof(layout::DeviceStats);

static_assert(kMostOpLogTensors == std::size(OpLogBatch{}.tensors));
static_assert(kMostOpLogTensors == std::size(DirectState{}.blocks_done_of_row));

std::uint64_t BytesOf(const OpLogTensor& tensor) {
  return tensor.count * layout::DtypeBytes(tensor.dtype);
}

std::uint64_t DivideUp(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// No block reads more than the others that are full: a batch takes as long as its slowest block.
// Each tensor has one block that is not full, at most.
OpLogBatch MakeBatch(const Buffers& buffers, void* parts, std::span<const OpLogTensor> tensors) {
  OpLogBatch batch = {};
  auto* rows = static_cast<layout::DeviceStats*>(buffers.staging);
  batch.rows = rows;
  batch.parts =
      parts != nullptr ? static_cast<layout::DeviceStats*>(parts) : rows + kOpLogRowsOfPage;
  const std::uint64_t most_blocks = parts != nullptr ? kMostBlocksOfLarge : kMostBlocks;
  batch.state = buffers.state;
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

std::uint64_t OpLogStagingBytes() { return (kOpLogRowsOfPage + kMostBlocks) * kRowBytes; }
std::uint64_t OpLogPartsBytes() { return kMostBlocksOfLarge * kRowBytes; }
std::uint64_t ScratchBytesOfRows() { return sizeof(DirectState) + OpLogPartsBytes(); }

void ComputeRowsNow(void* rows, void* scratch, std::span<const OpLogTensor> tensors, int device,
                    void* stream) {
  const DeviceGuard guard(device);
  Buffers buffers;
  buffers.staging = rows;
  buffers.state = static_cast<DirectState*>(scratch);
  OpLogBatch batch =
      MakeBatch(buffers, static_cast<std::byte*>(scratch) + sizeof(DirectState), tensors);
  Launch(OpLogPartsKernel(), static_cast<int>(batch.blocks), kOpLogThreads, &batch,
         static_cast<cudaStream_t>(stream), /*overlaps=*/false);
}

Position ComputeRows(const Buffers& buffers, void* parts, std::span<const OpLogTensor> tensors,
                     std::uint32_t launch, void* stream_handle, const Position& at) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(buffers.device);
  const RelaxedCapture relaxed;
  const Position now = PositionOf(stream);
  OpLogBatch batch = MakeBatch(buffers, parts, tensors);
  batch.launch = launch;
  const bool overlaps = GridsOverlap(buffers.device);
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
