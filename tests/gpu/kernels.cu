#include <cstdint>

#include "libprobe/capture/kernels/grid_overlap.cuh"
#include "tests/gpu/kernels.h"

namespace cgdebug::test {
namespace {

__global__ void Add(float* values, int count, float addend) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += addend;
}
__global__ void Fill(float* values, std::size_t count, const float* value, unsigned delay_ns) {
  capture::LetNextGridStart();
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < delay_ns);
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    values[count - 1 - i] = *value;
  }
  capture::WaitForGridsBefore();
}
__global__ void Enter(cudaGraphConditionalHandle handle, const unsigned* left) {
  cudaGraphSetConditional(handle, *left > 0);
}
__global__ void CountDown(cudaGraphConditionalHandle handle, unsigned* left) {
  *left -= 1;
  cudaGraphSetConditional(handle, *left > 0);
}
__global__ void EnterEveryThird(cudaGraphConditionalHandle handle, unsigned* replays) {
  *replays += 1;
  cudaGraphSetConditional(handle, *replays % 3 == 0);
}

}  // namespace

cudaError_t LaunchAdd(float* values, int count, float addend, cudaStream_t stream) {
  Add<<<(count + 255) / 256, 256, 0, stream>>>(values, count, addend);
  return cudaGetLastError();
}
cudaError_t LaunchFill(float* values, std::size_t count, const float* value, FillOptions options,
                       cudaStream_t stream) {
  cudaLaunchAttribute serialization = {};
  serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  serialization.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(64);
  config.blockDim = dim3(256);
  config.stream = stream;
  config.attrs = &serialization;
  config.numAttrs = options.overlaps ? 1 : 0;
  return cudaLaunchKernelEx(&config, Fill, values, count, value, options.delay_ns);
}
cudaError_t LaunchEnter(cudaGraphConditionalHandle handle, const unsigned* left,
                        cudaStream_t stream) {
  Enter<<<1, 1, 0, stream>>>(handle, left);
  return cudaGetLastError();
}
cudaError_t LaunchCountDown(cudaGraphConditionalHandle handle, unsigned* left,
                            cudaStream_t stream) {
  CountDown<<<1, 1, 0, stream>>>(handle, left);
  return cudaGetLastError();
}
void* EnterEveryThirdKernel() { return reinterpret_cast<void*>(&EnterEveryThird); }

}  // namespace cgdebug::test
