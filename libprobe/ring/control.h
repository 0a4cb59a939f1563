// control.h: the live control of a slot, read by its writer and written by the daemon.
#pragma once

#include <atomic>
#include <cstdint>

#include "libprobe/ring/credit.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::ring {

// Copies what the daemon wrote for the slot with this registration order into *control. Leaves
// *control unchanged while the daemon is writing (C2, pairs with C1).
inline void LoadControl(const layout::SlotCredit& credit, std::uint64_t order,
                        layout::SlotControl* control) noexcept {
  const std::uint64_t word = LoadAcquire(credit.control);
  if (layout::ControlVersion(word) % 2 != 0) return;
  layout::SlotControl fresh = layout::UnpackControl(word);
  fresh.from = LoadRelaxed(credit.control_from);
  fresh.until = LoadRelaxed(credit.control_until);
  fresh.expires_ns = LoadRelaxed(credit.control_expires_ns);
  fresh.threshold = LoadRelaxed(credit.control_threshold);
  const bool mine = LoadRelaxed(credit.order) == order;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (LoadRelaxed(credit.control) != word) return;
  *control = mine ? fresh : layout::SlotControl{};
}

// C1. Thread: the slot's one reader.
inline void StoreControl(layout::SlotCredit& credit, std::uint64_t order,
                         const layout::SlotControl& control) noexcept {
  TakeOver(credit, order);
  auto version = layout::ControlVersion(LoadRelaxed(credit.control));
  version = static_cast<std::uint16_t>(version | 1);
  StoreRelaxed(credit.control, layout::ControlWord(version, {}));
  std::atomic_thread_fence(std::memory_order_release);
  StoreRelaxed(credit.control_from, control.from);
  StoreRelaxed(credit.control_until, control.until);
  StoreRelaxed(credit.control_expires_ns, control.expires_ns);
  StoreRelaxed(credit.control_threshold, control.threshold);
  StoreRelease(credit.control,
               layout::ControlWord(static_cast<std::uint16_t>(version + 1), control));
}

}  // namespace cgdebug::ring
