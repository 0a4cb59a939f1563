// realtime.h: the wall clock, in the unit of every timestamp; a system call without a lock.
#pragma once

#include <time.h>

#include <cstdint>

namespace cgdebug::layout {

// CLOCK_REALTIME. Units: ns. Thread: any.
inline std::int64_t RealtimeNs() noexcept {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace cgdebug::layout
