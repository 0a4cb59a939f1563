// reader_gate.h: how long a producer waits for its reader: at most one deadline, and for no dead
// one.
#pragma once

#include <chrono>
#include <cstdint>

#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

// One a segment. A writer whose ring is full asks it to wait for the reader.
//
// Thread: any number of writers at a time.
class ReaderGate {
 public:
  // `fd` is the control file's descriptor; both stay valid as long as the gate.
  ReaderGate(const layout::ConsumerLine* consumer, int fd) noexcept
      : consumer_(consumer), fd_(fd) {}

  // Waits until *consumed >= needed. Returns at once when no daemon is attached, and when an
  // earlier wait ran into its deadline and the reader has not moved since: a hung daemon costs a
  // job one deadline, not one a replay. Fails: never; false when the caller must overwrite.
  bool WaitFor(const std::uint64_t& consumed, std::uint64_t needed,
               std::chrono::nanoseconds deadline) noexcept;

  // Whether a daemon has this segment open: one system call.
  bool ReaderAlive() const noexcept;

 private:
  static constexpr std::uint64_t kNeverGaveUp = ~std::uint64_t{0};
  const layout::ConsumerLine* consumer_;
  int fd_;
  std::uint64_t gave_up_at_progress_ = kNeverGaveUp;  // ConsumerLine::progress at that moment
};

}  // namespace cgdebug::ring
