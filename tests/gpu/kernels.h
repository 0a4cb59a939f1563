// kernels.h: kernels of a job.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace cgdebug::test {

// Adds `addend` to every value.
cudaError_t LaunchAdd(float* values, int count, float addend, cudaStream_t stream);
// Writes *value to every element, the last one first, and begins after `delay_ns`. With `overlaps`
// (programmatic dependent launch) it may start when the kernel in front of it allows that, and
// waits for its end only when everything is written. It lets the kernel behind it start at once.
struct FillOptions {
  unsigned delay_ns = 0;
  bool overlaps = false;
};
cudaError_t LaunchFill(float* values, std::size_t count, const float* value, FillOptions options,
                       cudaStream_t stream);
// Decide how often the body of a conditional node runs. The body runs (again) while *left is not 0;
// `left` may be pinned host memory.
cudaError_t LaunchEnter(cudaGraphConditionalHandle handle, const unsigned* left,
                        cudaStream_t stream);
cudaError_t LaunchCountDown(cudaGraphConditionalHandle handle, unsigned* left, cudaStream_t stream);
// void(cudaGraphConditionalHandle, unsigned* replays): counts, and enters in every third replay.
void* EnterEveryThirdKernel();

}  // namespace cgdebug::test
