// credit.h: how far a slot has been read, without mistaking the credit of the block's previous slot
// for it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "libprobe/ring/shared_copy.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::ring {

// The ordinal up to which the slot with this registration order was consumed (R4, pairs with W4).
//
// Why the order is checked: a daemon may be stopped between reading the directory and storing its
// credit, and wake up when the block belongs to another slot. If its late credit counted for that
// slot, snapshots that nobody read would count as read.
inline std::uint64_t CreditedOrdinal(const layout::SlotCredit& credit,
                                     std::uint64_t order) noexcept {
  const std::uint64_t consumed = LoadAcquire(credit.consumed);
  if (LoadAcquire(credit.order) != order) return 0;
  return LoadRelaxed(credit.consumed) == consumed ? consumed : 0;
}

// Clears what a late daemon may have left for the block's previous slot, live control included,
// before anything is stored for the slot with this registration order.
inline void TakeOver(layout::SlotCredit& credit, std::uint64_t order) noexcept {
  if (LoadRelaxed(credit.order) == order) return;
  StoreRelaxed(credit.consumed, std::uint64_t{0});
  if (const std::uint64_t word = LoadRelaxed(credit.control); word != 0) {
    const int next = (layout::ControlVersion(word) | 1) + 1;  // a kernel compares words
    StoreRelaxed(credit.control, layout::ControlWord(static_cast<std::uint16_t>(next), {}));
  }
  StoreRelease(credit.order, order);
}

struct Credit {
  std::uint64_t consumed = 0;  // entries that were consumed or lost
  std::uint64_t lost = 0;      // of those
};

// The credit of the slot with this registration order, and the losses that belong to it.
inline Credit LoadCredit(const layout::SlotCredit& credit, const layout::SlotHistory& history,
                         std::uint64_t order) noexcept {
  // A daemon at work may move the credit meanwhile and overwrite these losses, but not at every
  // look. A hostile job may do so for ever; it then gets any count.
  constexpr int kLooks = 100;
  Credit copy;
  for (int look = 0; look < kLooks; ++look) {
    copy = {CreditedOrdinal(credit, order), 0};
    for (const layout::SlotLost& lost : history.lost) {
      if (LoadAcquire(lost.order) != order || LoadRelaxed(lost.consumed) != copy.consumed) continue;
      copy.lost = std::min(LoadRelaxed(lost.lost), copy.consumed);
    }
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the fence in StoreCredit()
    if (CreditedOrdinal(credit, order) == copy.consumed) break;
  }
  return copy;
}

// W4. Thread: the slot's one reader. Requires: the credit is not at `ordinal` yet.
inline void StoreCredit(layout::SlotCredit& credit, layout::SlotHistory& history,
                        std::uint64_t order, std::uint64_t ordinal, std::uint64_t lost) noexcept {
  TakeOver(credit, order);
  const bool first_is_in_use =
      LoadRelaxed(history.lost[0].order) == order &&
      LoadRelaxed(history.lost[0].consumed) == LoadRelaxed(credit.consumed);
  layout::SlotLost& unused = history.lost[first_is_in_use ? 1 : 0];
  // A reader that sees these stores also sees that the credit has moved on from the losses they
  // overwrite.
  std::atomic_thread_fence(std::memory_order_release);
  StoreRelaxed(unused.consumed, ordinal);
  StoreRelaxed(unused.lost, lost);
  StoreRelease(unused.order, order);
  StoreRelease(credit.consumed, ordinal);
}

}  // namespace cgdebug::ring
