// conditional_kernels.h: kernels that decide how often the body of a conditional node runs.
#pragma once

#include <cuda_runtime_api.h>

namespace cgdebug::test {

// Adds `addend` to every value.
cudaError_t LaunchAdd(float* values, int count, float addend, cudaStream_t stream);
// The body runs (again) while *left is not 0; `left` may be pinned host memory.
cudaError_t LaunchEnter(cudaGraphConditionalHandle handle, const unsigned* left,
                        cudaStream_t stream);
cudaError_t LaunchCountDown(cudaGraphConditionalHandle handle, unsigned* left, cudaStream_t stream);
// void(cudaGraphConditionalHandle, unsigned* replays): counts, and enters in every third replay.
void* EnterEveryThirdKernel();

}  // namespace cgdebug::test
