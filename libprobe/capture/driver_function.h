// driver_function.h: functions of the CUDA driver, which is not linked: a machine may have none.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "libprobe/capture/cuda_check.h"

namespace cgdebug::capture {

// `version` is the CUDA version (12000 = 12.0) whose form of the function is wanted.
// Fails: throws ProbeError kUnsupported if this driver does not have it.
inline void* DriverFunction(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CGD_CUDA(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw ProbeError(ErrorKind::kUnsupported,
                     std::string("this CUDA driver has no ") + name + ", which cgdebug needs");
  }
  return function;
}

}  // namespace cgdebug::capture
