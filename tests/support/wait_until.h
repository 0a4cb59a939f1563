// wait_until.h: waits for a condition instead of a time.
#pragma once

#include <chrono>
#include <thread>

namespace cgdebug::test {

inline constexpr auto kDeadline = std::chrono::seconds(20);

// Whether `fact()` came true before the deadline.
template <typename Fact>
bool WaitUntil(Fact&& fact, std::chrono::nanoseconds deadline = kDeadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!fact()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace cgdebug::test
