// freeze_lines.h: which replay stopped the rings in device memory, and when they go on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/layout/segment_layout.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::ring {

// The last freeze of the rings in the memory of one device; serial 0: there was none.
struct Freeze {
  std::uint64_t serial = 0;  // of the last replay that they keep
  std::uint64_t order = 0;   // of the slot that stopped them
  std::uint64_t replay = 0;  // of that slot
  layout::ControlTrigger trigger = layout::ControlTrigger::kNone;  // kNone: Stop()
  bool live = false;  // the trigger is the live control's
};

// Requires: device < layout::kMaxFreezeDevices. Lifetime: the control file's memory outlives it.
class FreezeLines {
 public:
  explicit FreezeLines(std::byte* control)
      : freezes_(reinterpret_cast<layout::FreezeLine*>(control + layout::kFreezeLineOffset)),
        thaws_(reinterpret_cast<layout::ThawLine*>(control + layout::kThawLineOffset)) {}

  Freeze Last(std::uint32_t device) const;
  // Asks the rings of the device to stop. `number`: not 0, and another one each time.
  void Stop(std::uint32_t device, std::uint64_t number);
  // Ends the freeze of `serial`, if it is not 0, and withdraws what Stop() asked for.
  void Thaw(std::uint32_t device, std::uint64_t serial);
  bool IsThawed(std::uint32_t device, std::uint64_t serial) const;
  // On all devices: rings that stop without a daemon stay stopped until the next one comes.
  void WithdrawStops();

 private:
  const layout::FreezeLine* freezes_;
  layout::ThawLine* thaws_;
};

}  // namespace cgdebug::ring
