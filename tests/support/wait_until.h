// wait_until.h: waits for a condition instead of a time.
#pragma once

#include <chrono>
#include <thread>

namespace cgdebug::test {

// Only a hang reaches it: a loaded machine under a sanitizer is a hundred times slower than an idle
// one.
inline constexpr auto kDeadline = std::chrono::seconds(120);

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
