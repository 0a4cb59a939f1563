#include "libprobe/capture/lane/lane_device.h"

#include <algorithm>

#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/graph/staging_layout.h"
#include "libprobe/ring/serial.h"
#include "proto/layout/realtime.h"

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kFewStatsBlocksBytes = 8ull << 20;
// From here on bfloat16 is added on the tensor cores, which takes longer to begin and to end.
constexpr std::uint64_t kTensorCoreBytes = 2ull << 20;
constexpr int kClockReadings = 5;

// The offset from the GPU's clock to the clock of serials: the middle of the fastest of several
// readings. The pinned word is not freed: that would wait for the job's work.
std::int64_t MeasureSerialOffset(cudaStream_t stream) {
  std::uint64_t* reading = nullptr;
  CGD_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&reading), sizeof(*reading),
                         cudaHostAllocPortable | cudaHostAllocMapped));
  std::int64_t best_ns = INT64_MAX;
  std::int64_t offset_ns = 0;
  for (int i = 0; i < kClockReadings; ++i) {
    const std::int64_t before = ring::SerialClockNs();
    Launch(ClockKernel(), 1, 1, &reading, stream);
    CGD_CUDA(cudaStreamSynchronize(stream));
    const std::int64_t after = ring::SerialClockNs();
    if (after - before >= best_ns) continue;
    best_ns = after - before;
    offset_ns = before + best_ns / 2 - static_cast<std::int64_t>(*reading);
  }
  return offset_ns;
}

}  // namespace

LaneDevice LaneDevice::SetUp(int index) {
  LaneDevice device;
  device.index = index;
  CGD_CUDA(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
  CGD_CUDA(cudaMalloc(reinterpret_cast<void**>(&device.gate), sizeof(*device.gate)));
  CGD_CUDA(cudaMemsetAsync(device.gate, 0, sizeof(*device.gate), device.stream));
  CGD_CUDA(cudaMalloc(reinterpret_cast<void**>(&device.never_skips), sizeof(DirectState)));
  CGD_CUDA(cudaMemsetAsync(device.never_skips, 0, sizeof(DirectState), device.stream));
  device.serial_offset_ns = MeasureSerialOffset(device.stream);
  device.clock_offset_ns = device.serial_offset_ns + layout::RealtimeNs() - ring::SerialClockNs();
  device.multiprocessors = Attribute(cudaDevAttrMultiProcessorCount, index);
  const int capability = Attribute(cudaDevAttrComputeCapabilityMajor, index);
  // Kernels that were compiled for earlier devices do not wait (grid_overlap.cuh).
  cudaFuncAttributes compiled = {};
  CGD_CUDA(cudaFuncGetAttributes(&compiled, ClockKernel()));
  device.overlaps = capability >= 9 && compiled.ptxVersion >= 90;
  // How tensor cores round is known of Hopper alone (tensor_core_sums.cuh).
  device.adds_bfloat16 = capability == 9 && compiled.ptxVersion >= 90;
  return device;
}

// Adding up warps takes as long as reading some vectors, so small tensors use fewer of them.
StatsGrid LaneDevice::GridOfStats(layout::Dtype dtype, std::uint64_t bytes) const {
  const auto most = [this](int per_multiprocessor) {
    return static_cast<std::uint64_t>(per_multiprocessor) *
           static_cast<std::uint64_t>(multiprocessors);
  };
  StatsGrid grid;
  grid.on_tensor_cores =
      adds_bfloat16 && dtype == layout::Dtype::kBfloat16 && bytes >= kTensorCoreBytes;
  if (grid.on_tensor_cores) {
    // Small enough for each warp to read one group.
    const bool is_small = bytes <= most(1) * kStatsThreads * kTensorCoreVectors * 16;
    grid.blocks = static_cast<int>(most(is_small ? 1 : kTensorCoreBlocksPerMultiprocessor));
  } else {
    const int few = kStatsBlocksPerMultiprocessor / 2;
    grid.blocks =
        BlocksFor(bytes, 16 * kStatsThreads,
                  most(bytes <= kFewStatsBlocksBytes ? few : kStatsBlocksPerMultiprocessor));
  }
  return grid;
}

// Enough to read a tensor much faster than the link takes it, on half of the multiprocessors.
int LaneDevice::HashBlocks(std::uint64_t bytes) const {
  return BlocksFor(bytes, std::uint64_t{16} * 4 * kHashThreads,
                   static_cast<std::uint64_t>(std::max(1, multiprocessors / 2)));
}

void LaneDevice::Write(void* to, const void* from, std::size_t bytes) const {
  CGD_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  CGD_CUDA(cudaStreamSynchronize(stream));
}

}  // namespace cgdebug::capture
