// credit.h: how far a slot's reader is, told apart from what it says about the block's last owner.
#pragma once

#include <cstdint>

#include "libprobe/ring/shared_copy.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::ring {

// The ordinal up to which the slot with this registration order was consumed (R4, pairs with W4).
//
// Why the order: a daemon that is stopped between looking at the directory and storing its credit
// may store it when the block belongs to another slot. Such a credit must not pass as that slot's,
// or snapshots that nobody read would count as read.
inline std::uint64_t CreditedOrdinal(const layout::SlotCredit& credit,
                                     std::uint64_t order) noexcept {
  const std::uint64_t consumed = LoadAcquire(credit.consumed);
  if (LoadAcquire(credit.order) != order) return 0;
  return LoadRelaxed(credit.consumed) == consumed ? consumed : 0;
}

// Before the first store for the slot with this registration order: what a late daemon left there
// for the block's last owner, live control included, must not become this slot's with its order.
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
