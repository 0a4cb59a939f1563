// realtime.h: the wall clock, in the unit of every timestamp.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "proto/layout/realtime.h"

namespace cgdebug {

using layout::RealtimeNs;

// How long ago that was; 0 if it is still to come. `realtime_ns` comes from a job and may be
// anything.
inline std::chrono::nanoseconds AgeOf(std::int64_t realtime_ns) noexcept {
  const std::int64_t since_ns = std::max<std::int64_t>(realtime_ns, 0);
  return std::chrono::nanoseconds(std::max<std::int64_t>(RealtimeNs() - since_ns, 0));
}

}  // namespace cgdebug
