#include "libprobe/capture/op_log_lane.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/direct_kernels.h"
#include "libprobe/capture/kernel_launch.h"

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kMostBlocks = 256;  // of a batch; each leaves one part
constexpr std::uint64_t kBytesPerBlock = 16u << 10;
constexpr std::uint64_t kRowBytes = sizeof(layout::DeviceStats);

static_assert(kMostOpLogTensors == std::size(OpLogBatch{}.tensors));

std::uint64_t BytesOf(const OpLogTensor& tensor) {
  return tensor.count * layout::DtypeBytes(tensor.dtype);
}

std::uint64_t BlocksWanted(const OpLogTensor& tensor) {
  return std::max<std::uint64_t>((BytesOf(tensor) + kBytesPerBlock - 1) / kBytesPerBlock, 1);
}

// Deals out the blocks by bytes, at least one to each tensor.
OpLogBatch MakeBatch(const Buffers& buffers, std::span<const OpLogTensor> tensors) {
  OpLogBatch batch = {};
  auto* rows = static_cast<layout::DeviceStats*>(buffers.staging);
  batch.rows = rows;
  batch.parts = rows + kOpLogRowsOfPage;
  batch.state = buffers.state;
  std::uint64_t wanted = 0;
  for (const OpLogTensor& tensor : tensors) wanted += BlocksWanted(tensor);
  const std::uint64_t spare = kMostBlocks - tensors.size();
  for (const OpLogTensor& tensor : tensors) {
    const std::uint64_t mine = BlocksWanted(tensor);
    OpLogBatch::Tensor& to = batch.tensors[batch.count++];
    to.from = static_cast<const std::byte*>(tensor.data);
    to.count = tensor.count;
    to.first_block = batch.blocks;
    to.row = static_cast<std::uint16_t>(tensor.row);
    to.dtype = static_cast<std::uint8_t>(tensor.dtype);
    const std::uint64_t dealt =
        wanted <= kMostBlocks ? mine : std::max<std::uint64_t>(mine * spare / wanted, 1);
    batch.blocks += static_cast<std::uint32_t>(dealt);
  }
  return batch;
}

}  // namespace

std::uint64_t OpLogStagingBytes() { return (kOpLogRowsOfPage + kMostBlocks) * kRowBytes; }

Position ComputeRows(const Buffers& buffers, std::span<const OpLogTensor> tensors,
                     std::uint32_t launch, void* stream_handle, const Position& at) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(buffers.device);
  const RelaxedCapture relaxed;
  const Position now = PositionOf(stream);
  OpLogBatch batch = MakeBatch(buffers, tensors);
  batch.launch = launch;
  const bool overlaps = GridsOverlap(buffers.device);
  if (now != at) SetPosition(stream, at);
  try {
    Launch(OpLogPartsKernel(), static_cast<int>(batch.blocks), kOpLogThreads, &batch, stream,
           overlaps);
    if (batch.blocks != batch.count) {
      Launch(OpLogRowsKernel(), static_cast<int>(batch.count), 32, &batch, stream, overlaps);
    }
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
