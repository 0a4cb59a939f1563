// sigbus_guard.h: keeps truncated shared memory from killing the daemon.
#pragma once

namespace cgdebug::ingest {

// While one exists on a thread, a mapped page that its file no longer covers is replaced by a page
// of zeros, and Hit() returns true. Why not jump out of the handler: that would skip destructors.
//
// Requires: the caller discards what it read if Hit().
// Thread:   the thread that made it.
class SigbusGuard {
 public:
  // Once per process.
  static void Install();

  // Sets *hit at its end if Hit().
  explicit SigbusGuard(bool* hit = nullptr) noexcept;
  ~SigbusGuard();
  SigbusGuard(const SigbusGuard&) = delete;
  SigbusGuard& operator=(const SigbusGuard&) = delete;

  // Whether the outermost guard of this thread met a missing page.
  static bool Hit() noexcept;

 private:
  bool* const hit_;
};

}  // namespace cgdebug::ingest
