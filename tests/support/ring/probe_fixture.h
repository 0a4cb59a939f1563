// probe_fixture.h: CPU tensors and probes for tests of the C++ API.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cgdebug/probe.h"

namespace cgdebug::test {

inline ProbeOptions Always(std::uint32_t capacity = 4) {
  ProbeOptions options;
  options.mode = ProbeMode::kAlways;
  options.record = RecordAction{capacity, 1};
  return options;
}

inline ProbeOptions AlwaysPrint() {
  ProbeOptions options;
  options.mode = ProbeMode::kAlways;
  options.print = PrintAction{};
  return options;
}

// Borrows `values` for the call.
inline TensorRef Cpu(const std::vector<float>& values) {
  TensorRef tensor;
  tensor.data = values.data();
  tensor.dtype = Dtype::kFloat32;
  tensor.shape = {static_cast<std::int64_t>(values.size())};
  tensor.device_type = DeviceType::kCpu;
  return tensor;
}

inline std::vector<float> Values(const Record& record) {
  std::vector<float> values(record.payload.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), record.payload.data(), record.payload.size());
  return values;
}

template <typename Function>
std::string ErrorText(ErrorKind kind, Function&& function) {
  try {
    function();
  } catch (const ProbeError& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

// From now on this process neither starts a daemon nor waits for one.
inline void ForbidDaemon() { setenv("CGDEBUG", "0", 1); }
inline void ExpectDaemon() { unsetenv("CGDEBUG"); }

}  // namespace cgdebug::test
