// thread_checker.h: makes "one thread owns this object" a check instead of a comment.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace cgdebug {

// Bound to the first thread that calls Check, so an object may be built on one thread and handed to
// the one that runs it. Costs nothing with NDEBUG.
class ThreadChecker {
 public:
  // Fails: aborts when called on another thread than the first call, naming `what`.
  void Check([[maybe_unused]] const char* what) const noexcept {
#ifndef NDEBUG
    std::thread::id owner{};
    const std::thread::id self = std::this_thread::get_id();
    if (owner_.compare_exchange_strong(owner, self, std::memory_order_relaxed) || owner == self)
      return;
    std::fprintf(stderr, "cgdebug: %s used by a thread that does not own it\n", what);
    std::abort();
#endif
  }

  // The next thread that calls Check owns the object.
  void Detach() noexcept { owner_.store(std::thread::id{}, std::memory_order_relaxed); }

 private:
  mutable std::atomic<std::thread::id> owner_{std::thread::id{}};
};

}  // namespace cgdebug
