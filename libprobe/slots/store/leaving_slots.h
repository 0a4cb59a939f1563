// leaving_slots.h: slots that their probes have let go of, until nothing reaches them and nobody
// waits for what is in them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/slots/store/process_segment.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class LeavingSlots {
 public:
  // Outlives it.
  explicit LeavingSlots(const ProcessSegment* segment) : segment_(segment) {}

  // A second time does nothing.
  void Add(capture::ProbeSlot& slot);
  // The next Free() looks at all of them: some of those that wait for their graph may be free now.
  void LookAtAll() { first_new_ = 0; }
  // Gives `remove` those that nobody needs. Not `all`: looks only at those that came since the last
  // call, but for now and then. `force`: what is kept for readers that may come later goes too.
  void Free(bool all, bool force, const std::function<void(capture::ProbeSlot&)>& remove);

 private:
  using Clock = std::chrono::steady_clock;

  const ProcessSegment* segment_;
  // In the order in which they came. Those from `first_new_` on were never looked at.
  std::vector<capture::ProbeSlot*> slots_;
  std::size_t first_new_ = 0;
  std::uint64_t bytes_ = 0;            // that they take
  std::uint64_t look_from_bytes_ = 0;  // if they take so much, all of them are looked at
  Clock::time_point next_look_;        // at all of them
};

}  // namespace cgdebug
