#include "libprobe/capture/lane/stage_copy.h"

#include <algorithm>
#include <bit>

#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/graph/staging_layout.h"

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kMostStageBlocks = 1024;

// The most bytes, up to 16, of which both the address and the size are a multiple.
int UnitOf(const void* from, std::uint64_t bytes) {
  const std::uint64_t alignment = reinterpret_cast<std::uintptr_t>(from) | bytes;
  return 1 << std::min(std::countr_zero(alignment | 16), 4);
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

void LaunchStage(const TensorRef& tensor, StageArgs args, bool overlaps, cudaStream_t stream) {
  const StageGrid grid = StageGrid::Of(tensor, args.bytes);
  args.from_stride = tensor.element_stride;
  Launch(grid.gathers ? GatherKernel(grid.unit) : StageKernel(grid.unit), grid.blocks,
         kStageThreads, &args, stream, overlaps);
}

}  // namespace cgdebug::capture
