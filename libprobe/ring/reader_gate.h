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
  struct Result {
    bool consumed;                    // false: the caller must overwrite
    std::chrono::nanoseconds waited;  // 0 when there was nobody to wait for
  };

  // `fd` is the control file's descriptor; both stay valid as long as the gate.
  ReaderGate(const layout::ConsumerLine* consumer, int fd) noexcept
      : consumer_(consumer), fd_(fd) {}

  // Waits until the slot with this registration order is consumed up to `needed`. Returns at once
  // when no daemon is attached, and when an earlier wait found it dead or ran into its deadline,
  // and the reader has not moved since: a hung daemon costs a job one deadline, not one a replay or
  // one a slot, and a dead one a system call.
  // Fails: never.
  Result WaitFor(const layout::SlotCredit& credit, std::uint64_t order, std::uint64_t needed,
                 std::chrono::nanoseconds deadline) noexcept;

  // Waits until a daemon has this segment open, at most `deadline`.
  bool AwaitReader(std::chrono::nanoseconds deadline) const noexcept;

  // Whether a daemon has this segment open: one system call.
  bool ReaderAlive() const noexcept;

 private:
  static constexpr std::uint64_t kNeverGaveUp = ~std::uint64_t{0};
  const layout::ConsumerLine* consumer_;
  int fd_;
  std::uint64_t gave_up_at_progress_ = kNeverGaveUp;  // ConsumerLine::progress at that moment
};

}  // namespace cgdebug::ring
