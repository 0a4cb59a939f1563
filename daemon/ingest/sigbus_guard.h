// sigbus_guard.h: shared memory that somebody truncated does not kill the daemon.
#pragma once

namespace cgdebug::ingest {

// While one exists on a thread, a mapped page whose file no longer reaches it is replaced by a page
// of zeros, and Hit() tells. Why not a jump out of the handler: it would skip destructors.
//
// Requires: what was read is thrown away when Hit().
// Thread:   the thread that made it.
class SigbusGuard {
 public:
  // Once in the process.
  static void Install();

  SigbusGuard() noexcept;
  ~SigbusGuard();
  SigbusGuard(const SigbusGuard&) = delete;
  SigbusGuard& operator=(const SigbusGuard&) = delete;

  // Whether the outermost guard of this thread met a missing page.
  static bool Hit() noexcept;
};

}  // namespace cgdebug::ingest
