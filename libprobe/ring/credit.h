// credit.h: how far a slot's reader is, told apart from what it says about the block's last owner.
#pragma once

#include <cstdint>

#include "libprobe/ring/shared_copy.h"
#include "proto/layout/ring_layout.h"

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

// W4. `lost` first: a credit never hides a loss.
inline void StoreCredit(layout::SlotCredit& credit, std::uint64_t order, std::uint64_t ordinal,
                        std::uint64_t lost) noexcept {
  if (LoadRelaxed(credit.order) != order) {
    StoreRelaxed(credit.consumed, std::uint64_t{0});
    StoreRelease(credit.order, order);
  }
  StoreRelaxed(credit.lost, lost);
  StoreRelease(credit.consumed, ordinal);
}

}  // namespace cgdebug::ring
