// cuda_check.h: every CUDA call is checked; a failure says which call, and what CUDA called it.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cgdebug/probe.h"

namespace cgdebug::capture {

inline void CheckCuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // the error was reported here; the job's next check must not see it
  throw Error(ErrorKind::kSystem, std::string(call) + " failed: " + cudaGetErrorName(status) +
                                      " (" + cudaGetErrorString(status) +
                                      "). Type: cgdebug-cli doctor");
}

// Set-up calls would break a capture in "global" or "thread_local" mode; in relaxed mode they are
// legal. Swaps the mode of this thread only.
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
