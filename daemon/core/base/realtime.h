// realtime.h: the wall clock, in the unit of every timestamp.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace cgdebug {

// CLOCK_REALTIME. Units: ns. Thread: any.
inline std::int64_t RealtimeNs() noexcept {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// How long ago that was; 0 if it is still to come. `realtime_ns` comes from a job and may be
// anything.
inline std::chrono::nanoseconds AgeOf(std::int64_t realtime_ns) noexcept {
  const std::int64_t since_ns = std::max<std::int64_t>(realtime_ns, 0);
  return std::chrono::nanoseconds(std::max<std::int64_t>(RealtimeNs() - since_ns, 0));
}

}  // namespace cgdebug
