// reader_gate.h: how long a producer waits for its reader: at most one deadline, and not at all for
// a dead one.
#pragma once

#include <chrono>
#include <cstdint>

#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

// One per segment. A writer whose ring is full asks it to wait for the reader.
//
// Thread: any number of writers at a time, each with a slot of its own.
class ReaderGate {
 public:
  struct Result {
    bool consumed;                    // false: the caller must overwrite
    std::chrono::nanoseconds waited;  // 0 when there was nobody to wait for
  };

  // `fd` is the control file's descriptor, `refusals` its table; all stay valid as long as the
  // gate.
  ReaderGate(const layout::ConsumerLine* consumer, const layout::Refusal* refusals, int fd) noexcept
      : consumer_(consumer), refusals_(refusals), fd_(fd) {}

  // Waits until the slot with this registration order is consumed up to `needed`. Returns at once
  // if
  //   - no daemon is attached, or the daemon refused the slot;
  //   - an earlier wait found the daemon dead or ran into its deadline, and it has not moved since;
  //   - an earlier wait for this slot failed, and neither its credit nor the daemon changed since.
  // So a hung daemon costs a job one deadline in total, not one per replay or slot; a slot that
  // nobody reads costs at most one deadline; a dead daemon costs one system call.
  // `gave_up` is where the slot remembers that; 0 at first.
  // Fails: never.
  Result WaitFor(const layout::SlotCredit& credit, std::uint64_t order, std::uint64_t needed,
                 std::chrono::nanoseconds deadline, std::uint64_t* gave_up) noexcept;

  // Waits until a daemon has this segment open, at most `deadline`.
  bool AwaitReader(std::chrono::nanoseconds deadline) const noexcept;

  // Whether a daemon has this segment open: one system call.
  bool ReaderAlive() const noexcept;

 private:
  static constexpr std::uint64_t kNeverGaveUp = ~std::uint64_t{0};
  bool Refused(std::uint64_t order) const noexcept;

  const layout::ConsumerLine* consumer_;
  const layout::Refusal* refusals_;
  int fd_;
  std::uint64_t gave_up_at_progress_ = kNeverGaveUp;  // ConsumerLine::progress at that moment
};

}  // namespace cgdebug::ring
