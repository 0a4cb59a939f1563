// kernel_launch.h: launches a kernel on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "libprobe/capture/cuda_check.h"

namespace cgdebug::capture {

// With `overlap`, the kernel may start before the kernel in front of it ends, and must wait for it.
inline void Launch(const void* kernel, int blocks, int threads, void* arguments,
                   cudaStream_t stream, bool overlap = false) {
  cudaLaunchAttribute serialization = {};
  serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  serialization.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &serialization;
  config.numAttrs = overlap ? 1 : 0;
  void* list[] = {arguments};
  CGD_CUDA(cudaLaunchKernelExC(&config, kernel, list));
}

}  // namespace cgdebug::capture
