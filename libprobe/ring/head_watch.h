// head_watch.h: sees that a slot has run, by one cache line.
#pragma once

#include <cstdint>

#include "libprobe/ring/shared_copy.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::ring {

// Thread:   one at a time.
// Lifetime: points into the mapping of the SegmentView it came from. If the block was given to
//           another slot, it watches that one.
class HeadWatch {
 public:
  explicit HeadWatch(const layout::SlotHead* head) : head_(head) {}

  void Prefetch() const noexcept { __builtin_prefetch(head_); }
  // Whether a replay was counted, or an entry committed, since the last Take().
  bool HasMoved() const noexcept {
    return LoadAcquire(head_->accepted) != accepted_ ||  // R3, pairs with W3
           LoadRelaxed(head_->replay) != replay_;
  }
  // The same, and forgets it.
  bool Take() noexcept {
    const std::uint64_t accepted = LoadAcquire(head_->accepted);  // R3, pairs with W3
    const std::uint64_t replay = LoadRelaxed(head_->replay);
    const bool has_moved = accepted != accepted_ || replay != replay_;
    accepted_ = accepted;
    replay_ = replay;
    return has_moved;
  }
  // Whether its probe was closed, so that it counts no replay any more.
  bool IsDisarmed() const noexcept { return LoadRelaxed(head_->disarmed) != 0; }

 private:
  const layout::SlotHead* head_;
  std::uint64_t accepted_ = 0;
  std::uint64_t replay_ = 0;
};

}  // namespace cgdebug::ring
