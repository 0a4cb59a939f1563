// stage_copy.h: the kernels on the compute path that copy a tensor into memory of the probe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cgdebug/probe.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {

// How a kernel of kStageThreads copies the elements of a tensor.
struct StageGrid {
  int unit = 0;          // bytes that a thread copies at a time
  bool gathers = false;  // they do not lie side by side: a unit is an element
  int blocks = 0;

  static StageGrid Of(const TensorRef& tensor, std::uint64_t bytes);
};

// All of `args` but `from_stride`. `overlaps`: as Launch(). Fails: throws ProbeError.
void LaunchStage(const TensorRef& tensor, StageArgs args, bool overlaps, cudaStream_t stream);

}  // namespace cgdebug::capture
