// device_guard.h: makes a device the current one of this thread for a while.
#pragma once

#include <cuda.h>

namespace cgdebug::capture {

// Restores the thread's context, also if it had none: cudaSetDevice(0) instead would create a
// context on device 0, half a GiB, for a thread that never used it.
//
// Fails: throws ProbeError.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  CUcontext previous_ = nullptr;
  bool changed_ = false;
};

}  // namespace cgdebug::capture
