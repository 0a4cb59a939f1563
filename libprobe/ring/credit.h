// credit.h: how far a slot has been read, without mistaking the credit of the block's previous slot
// for it.
#pragma once

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
  StoreRelaxed(credit.lost, std::uint64_t{0});
  if (const std::uint64_t word = LoadRelaxed(credit.control); word != 0) {
    const int next = (layout::ControlVersion(word) | 1) + 1;  // a kernel compares words
    StoreRelaxed(credit.control, layout::ControlWord(static_cast<std::uint16_t>(next), {}));
  }
  StoreRelease(credit.order, order);
}

// W4. `lost` first: a credit never hides a loss.
inline void StoreCredit(layout::SlotCredit& credit, std::uint64_t order, std::uint64_t ordinal,
                        std::uint64_t lost) noexcept {
  TakeOver(credit, order);
  StoreRelaxed(credit.lost, lost);
  StoreRelease(credit.consumed, ordinal);
}

}  // namespace cgdebug::ring
