#include "libprobe/ring/segment/freeze_lines.h"

#include "libprobe/ring/shared_copy.h"

namespace cgdebug::ring {

Freeze FreezeLines::Last(std::uint32_t device) const {
  const layout::FreezeLine& line = freezes_[device];
  Freeze freeze;
  freeze.serial = LoadAcquire(line.serial);  // T2, pairs with T1
  freeze.order = LoadRelaxed(line.order);
  freeze.replay = LoadRelaxed(line.replay);
  freeze.live = LoadRelaxed(line.live) != 0;
  const std::uint64_t trigger_untrusted = LoadRelaxed(line.trigger);
  if (trigger_untrusted <= static_cast<std::uint64_t>(layout::ControlTrigger::kMismatch)) {
    freeze.trigger = static_cast<layout::ControlTrigger>(trigger_untrusted);
  }
  return freeze;
}

void FreezeLines::Stop(std::uint32_t device, std::uint64_t number) {
  StoreRelease(thaws_[device].stop, number);
}

void FreezeLines::Thaw(std::uint32_t device, std::uint64_t serial) {
  StoreRelaxed(thaws_[device].stop, std::uint64_t{0});
  if (serial != 0) StoreRelease(thaws_[device].serial, serial);
}

bool FreezeLines::IsThawed(std::uint32_t device, std::uint64_t serial) const {
  return LoadRelaxed(thaws_[device].serial) == serial;
}

void FreezeLines::WithdrawStops() {
  for (std::uint32_t device = 0; device < layout::kMaxFreezeDevices; ++device) Thaw(device, 0);
}

}  // namespace cgdebug::ring
