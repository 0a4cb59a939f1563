#include "libprobe/capture/lane/op_log_lane.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/lane/direct_lane.h"
#include "libprobe/capture/memory/buffer_pool.h"

namespace cgdebug::capture {
namespace {

// Most blocks of a batch: as many as run at once on 132 multiprocessors; a large batch may have
// four times that. Each block leaves one part.
constexpr std::uint64_t kMostBlocks = std::uint64_t{132} * kOpLogBlocksPerMultiprocessor;
constexpr std::uint64_t kMostBlocksOfLarge = 4 * kMostBlocks;
constexpr std::uint64_t kLeastBytesOfBlock = 16u << 10;

static_assert(kMostOpLogTensors == std::size(OpLogBatch{}.tensors));
static_assert(kMostOpLogTensors == std::size(DirectState{}.page.blocks_done));

std::uint64_t BytesOf(const OpLogTensor& tensor) {
  return tensor.count * layout::DtypeBytes(tensor.dtype);
}

// How long a tail is, only a replay knows.
std::uint64_t LikelyBytesOf(const OpLogTensor& tensor) {
  return tensor.tail_start == nullptr ? BytesOf(tensor) : BytesOf(tensor) / 2;
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
  for (const OpLogTensor& tensor : tensors) bytes += LikelyBytesOf(tensor);
  const std::uint64_t bytes_of_block =
      std::max(DivideUp(bytes, most_blocks - tensors.size()), kLeastBytesOfBlock);
  for (const OpLogTensor& tensor : tensors) {
    if (tensor.tail_start != nullptr) batch.tail_start = tensor.tail_start;
    batch.elements_of_row[batch.count] = tensor.elements_of_row;
    OpLogBatch::Tensor& to = batch.tensors[batch.count++];
    to.from = static_cast<const std::byte*>(tensor.data);
    to.count = tensor.count;
    to.first_block = batch.blocks;
    to.row = static_cast<std::uint16_t>(tensor.row);
    to.dtype = static_cast<std::uint8_t>(tensor.dtype);
    to.is_permuted = tensor.order.has_value();
    to.is_tail = tensor.tail_start != nullptr;
    if (tensor.order) to.order = *tensor.order;
    batch.blocks += static_cast<std::uint32_t>(
        std::max<std::uint64_t>(DivideUp(LikelyBytesOf(tensor), bytes_of_block), 1));
  }
  return batch;
}

// `scratch`: ScratchBytesOfRows().
void LaunchNow(layout::DeviceStats* rows, DirectState* scratch,
               std::span<const OpLogTensor> tensors, bool to_host, cudaStream_t stream) {
  OpLogBatch batch =
      MakeBatch(rows, reinterpret_cast<layout::DeviceStats*>(scratch + 1), scratch, tensors);
  batch.to_host = to_host;
  Launch(OpLogPartsKernel(), static_cast<int>(batch.blocks), kOpLogThreads, &batch, stream,
         /*overlaps=*/false);
}

// Rows of eager ops that wait for a GPU, or for the next one: 16 MiB at most.
constexpr std::size_t kMostEagerRows = std::size_t{1} << 17;
constexpr std::size_t kEagerRowsAtOnce = 1024;

std::vector<layout::DeviceStats*>& FreeRows() {
  static auto* rows = new std::vector<layout::DeviceStats*>;
  return *rows;
}

// Host memory is never freed: a GPU may still write there.
layout::DeviceStats* TakeEagerRow() {
  static std::size_t made = 0;
  std::vector<layout::DeviceStats*>& rows = FreeRows();
  if (rows.empty()) {
    if (made >= kMostEagerRows) {
      throw ProbeError(ErrorKind::kNoSpace,
                       std::to_string(made) + " rows of eager ops wait for the GPU already");
    }
    void* memory = nullptr;
    CGD_CUDA(cudaHostAlloc(&memory, kEagerRowsAtOnce * sizeof(layout::DeviceStats),
                           cudaHostAllocPortable | cudaHostAllocMapped));
    made += kEagerRowsAtOnce;
    auto* const first = static_cast<layout::DeviceStats*>(memory);
    for (std::size_t i = kEagerRowsAtOnce; i-- > 0;) rows.push_back(first + i);
  }
  layout::DeviceStats* const row = rows.back();
  rows.pop_back();
  return row;
}

// What the kernels of a stream share, one after another.
DirectState* EagerScratch(int device, cudaStream_t stream) {
  static auto* memory = new StreamMemory("op logs see eager ops");
  return static_cast<DirectState*>(memory->Of(device, stream, ScratchBytesOfRows()));
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
  LaunchNow(static_cast<layout::DeviceStats*>(rows), static_cast<DirectState*>(scratch), tensors,
            /*to_host=*/false, static_cast<cudaStream_t>(stream));
}

EagerRow LaunchEagerRow(OpLogTensor tensor, int device, void* stream_handle) {
  auto* const stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  DirectState* const state = EagerScratch(device, stream);
  const EagerRow row = {TakeEagerRow(), device};
  tensor.row = 0;
  __atomic_store_n(&row.stats->flags, std::uint64_t{0}, __ATOMIC_RELEASE);
  try {
    LaunchNow(row.stats, state, {&tensor, 1}, /*to_host=*/true, stream);
  } catch (...) {
    GiveBack(row);
    throw;
  }
  return row;
}

bool IsThere(const EagerRow& row) {
  return __atomic_load_n(&row.stats->flags, __ATOMIC_ACQUIRE) != 0;  // it has a hash
}

void GiveBack(const EagerRow& row) { FreeRows().push_back(row.stats); }

bool HasFailed(int device) noexcept {
  try {
    const DeviceGuard guard(device);
    const RelaxedCapture relaxed;
    const cudaError_t status = cudaStreamQuery(cudaStreamPerThread);
    if (status == cudaSuccess || status == cudaErrorNotReady) return false;
  } catch (const std::exception&) {
  }
  (void)cudaGetLastError();
  return true;
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
  const bool overlaps = DirectLane::On(device).grids_overlap();
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
