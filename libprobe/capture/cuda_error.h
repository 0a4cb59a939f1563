// cuda_error.h: the failure of a CUDA call.
#pragma once

#include <string>
#include <utility>

#include "cgdebug/probe.h"

namespace cgdebug::capture {

class CudaError : public ProbeError {
 public:
  // `cause`: CUDA's name of the error, and its description in parentheses.
  CudaError(const std::string& call, std::string cause, const std::string& advice)
      : ProbeError(ErrorKind::kSystem, call + " failed: " + cause + ". " + advice),
        cause_(std::move(cause)) {}
  const std::string& cause() const { return cause_; }

 private:
  std::string cause_;
};

}  // namespace cgdebug::capture
