// serial.h: when a replay began, as a number that sorts all replays of the process.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "proto/layout/realtime.h"
#include "proto/layout/serial.h"

namespace cgdebug::ring {

// Nanoseconds since the epoch: the wall clock when the process first asked, plus CLOCK_MONOTONIC
// since. Comparable between processes as far as their wall clocks agreed, and setting the wall
// clock does not make it jump. Thread: any.
inline std::int64_t SerialClockNs() noexcept {
  const auto monotonic_ns = [] {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  };
  static const std::int64_t offset_ns = layout::RealtimeNs() - monotonic_ns();
  return monotonic_ns() + offset_ns;
}

// The time now, or a little more: greater than every earlier serial of any thread of the process,
// and not one of a GPU.
// Thread: any; no lock, no allocation.
inline std::uint64_t NextSerial() noexcept {
  static std::atomic<std::uint64_t> last{0};
  const std::uint64_t now = layout::SerialAt(static_cast<std::uint64_t>(SerialClockNs()), 0);
  std::uint64_t before = last.load(std::memory_order_relaxed);
  std::uint64_t next = 0;
  do {
    next = now > before ? now : before + layout::kSerialTakers;
  } while (!last.compare_exchange_weak(before, next, std::memory_order_relaxed));
  return next;
}

// The serial that the slots of one graph share. Every slot runs once per replay, so a slot that
// finds the serial of its own last replay is the first slot of a new replay, and takes a new serial
// for all.
class SharedSerial {
 public:
  // `last` is the slot's last serial, 0 at first. Thread: any.
  std::uint64_t After(std::uint64_t last) noexcept {
    std::uint64_t shared = serial_.load(std::memory_order_relaxed);
    if (shared != last) return shared;
    const std::uint64_t next = NextSerial();
    return serial_.compare_exchange_strong(shared, next, std::memory_order_relaxed) ? next : shared;
  }

 private:
  std::atomic<std::uint64_t> serial_{0};
};

}  // namespace cgdebug::ring
