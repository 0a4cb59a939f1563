// ring_contents.h: what is in the ring of one slot, for those who ask, consumed or not.
#pragma once

#include "daemon/ingest/device_requests.h"
#include "daemon/ingest/slot/shown_slots.h"
#include "daemon/ingest/slot/slot_clock.h"
#include "daemon/record/ring_reads.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// Thread: the ingest thread, under a SigbusGuard.
class RingContents {
 public:
  // All of them outlive this. `slot`: that of the directory.
  RingContents(const pipeline::SlotIdentity* slot, const ring::SlotRingReader* ring,
               const ShownSlots* shown, const SlotClock* clock, DeviceRequests* device)
      : slot_(slot), ring_(ring), shown_(shown), clock_(clock), device_(device) {}

  // Asks for values that are on the device, unless the producer is gone. Requires: `shown` has
  // request.slot.
  pipeline::RingContent Read(const pipeline::RingRequest& request, bool producer_alive);

 private:
  const pipeline::SlotIdentity* slot_;
  const ring::SlotRingReader* ring_;
  const ShownSlots* shown_;
  const SlotClock* clock_;
  DeviceRequests* device_;
};

}  // namespace cgdebug::ingest
