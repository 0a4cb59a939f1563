// cuda_check.h: checks every CUDA call; a failure names the call and CUDA's error.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "libprobe/capture/cuda_error.h"

namespace cgdebug::capture {

inline void CheckCuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // reported here: the job's next check must not see it
  const bool has_no_gpu = status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice;
  throw CudaError(call,
                  std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")",
                  has_no_gpu ? "If the tensor is in host memory, say so: .device_type = "
                               "cgdebug::DeviceType::kCpu"
                             : "Type: cgdebug-cli doctor");
}

// Swaps this thread's capture mode to relaxed, in which set-up calls are legal. In "global" or
// "thread_local" mode they would break the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() {
    CheckCuda(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace cgdebug::capture

#define CGD_CUDA(call) ::cgdebug::capture::CheckCuda((call), #call)
