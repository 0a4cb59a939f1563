// eager_slots.h: the slots of eager calls, in the order of their last use.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/slots/probe_registry.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class EagerSlots {
 public:
  // `slot` is the one that was used last.
  void Use(capture::ProbeSlot& slot);
  // Requires: ProbeSlot::in_use_order.
  void Remove(capture::ProbeSlot& slot);

  // Which of them give way to something else.
  enum class Give : std::uint8_t {
    kOldShapes,  // that their probes see no more; what a daemon has still to read stays for it
    kUnused,     // likewise, and those of probes that nobody calls
    kAny,
  };
  // Those that were unused for the longest time, with their probes, until they hold `bytes`.
  std::vector<std::pair<std::shared_ptr<ProbeState>, capture::ProbeSlot*>> GivingWay(
      std::uint64_t bytes, Give which, const ProbeRegistry& probes) const;
  std::uint64_t bytes() const { return bytes_; }  // that they take

 private:
  std::list<capture::ProbeSlot*> order_;  // the one that was unused for longest comes first
  std::uint64_t bytes_ = 0;
};

// Those of the probe's eager slots that go so that it can have one more. A slot with calls still on
// their way to the GPU stays, so there may be more of them for a while.
std::vector<capture::ProbeSlot*> SurplusEagerSlots(const ProbeState& probe);

}  // namespace cgdebug
