// own_usage.h: what this process uses itself.
#pragma once

#include <cstdint>

namespace cgdebug::pipeline {

double CpuSeconds();
// Without the rings it maps, which are the jobs'.
std::uint64_t ResidentBytes();

}  // namespace cgdebug::pipeline
