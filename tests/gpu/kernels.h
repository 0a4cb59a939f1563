// kernels.h: kernels of a job.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace cgdebug::test {

// Adds `addend` to every value.
cudaError_t LaunchAdd(float* values, int count, float addend, cudaStream_t stream);
// Writes *value to every element, the last one first. Lets the next kernel start at once
// (programmatic dependent launch), and begins to write after `delay_ns`.
cudaError_t LaunchFill(float* values, std::size_t count, const float* value, unsigned delay_ns,
                       cudaStream_t stream);
// Decide how often the body of a conditional node runs. The body runs (again) while *left is not 0;
// `left` may be pinned host memory.
cudaError_t LaunchEnter(cudaGraphConditionalHandle handle, const unsigned* left,
                        cudaStream_t stream);
cudaError_t LaunchCountDown(cudaGraphConditionalHandle handle, unsigned* left, cudaStream_t stream);
// void(cudaGraphConditionalHandle, unsigned* replays): counts, and enters in every third replay.
void* EnterEveryThirdKernel();

}  // namespace cgdebug::test
