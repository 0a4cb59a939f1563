// eager_slots.h: the slots of eager calls, in the order of their last use.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/slots/probe_state.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class EagerSlots {
 public:
  // `slot` is the one that was used last.
  void Use(capture::ProbeSlot& slot);
  // Requires: ProbeSlot::in_use_order.
  void Remove(capture::ProbeSlot& slot);

  // The one that was unused for longest comes first. An iterator stays valid until its slot goes.
  auto begin() { return order_.begin(); }
  auto end() { return order_.end(); }
  std::uint64_t bytes() const { return bytes_; }  // that they take

 private:
  std::list<capture::ProbeSlot*> order_;
  std::uint64_t bytes_ = 0;
};

// Those of the probe's eager slots that go so that it can have one more. A slot with calls still on
// their way to the GPU stays, so there may be more of them for a while.
std::vector<capture::ProbeSlot*> SurplusEagerSlots(const ProbeState& probe);

// Takes the pin of eager calls away when the GPU has finished them.
void SettleEagerCalls(capture::ProbeSlot& slot);

}  // namespace cgdebug
