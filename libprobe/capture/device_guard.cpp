#include "libprobe/capture/device_guard.h"

#include <cuda_runtime_api.h>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/driver_function.h"

namespace cgdebug::capture {
namespace {

using GetContext = CUresult (*)(CUcontext*);
using SetContext = CUresult (*)(CUcontext);

SetContext FindSetContext() {
  static const auto function =
      reinterpret_cast<SetContext>(DriverFunction("cuCtxSetCurrent", 4000));
  return function;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  static const auto get = reinterpret_cast<GetContext>(DriverFunction("cuCtxGetCurrent", 4000));
  (void)FindSetContext();  // so that it fails here and not in the destructor
  // Before the first use of the driver there is no context either.
  if (get(&previous_) != CUDA_SUCCESS) previous_ = nullptr;
  int current = 0;
  CheckCuda(cudaGetDevice(&current), "cudaGetDevice");
  if (previous_ != nullptr && current == device) return;
  CheckCuda(cudaSetDevice(device), "cudaSetDevice");
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) (void)FindSetContext()(previous_);
}

}  // namespace cgdebug::capture
