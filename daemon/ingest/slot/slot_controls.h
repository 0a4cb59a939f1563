// slot_controls.h: what clients set of one slot while its job runs.
#pragma once

#include <cstddef>
#include <vector>

#include "daemon/ingest/destination.h"
#include "daemon/ingest/device_requests.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// The rows of an op log are one slot to the producer: it loses nothing while a recording needs
// every snapshot of one of them, and whatever else is set holds for all.
//
// Thread: the ingest thread, under a SigbusGuard.
class SlotControls {
 public:
  // All of them outlive this. `slot`: that of the directory.
  SlotControls(const pipeline::SlotIdentity* slot, ring::SlotRingReader* ring,
               DeviceRequests* device, pipeline::Registry* registry)
      : slot_(slot), ring_(ring), device_(device), registry_(registry) {}

  // Takes what an earlier daemon set, whose recordings are over. `rows`: those that clients see.
  void Start(std::vector<pipeline::SlotPtr> rows);
  // Shows what is set in the registry. Requires: it has the slots.
  void Show() const;
  // Sets what the producer does from its next replay on. `row`: the number of `change.slot`.
  void Set(const pipeline::ControlChange& change, std::size_t row);
  // Ends a control that is over. `consumed`: the ordinal up to which all entries are consumed.
  void EndIfOver(const layout::SlotHead& head, std::uint64_t consumed);

 private:
  layout::Lossless LosslessWanted() const;
  bool IsOver(const layout::SlotHead& head, std::uint64_t consumed) const;
  void Apply(const layout::SlotControl& control);

  const pipeline::SlotIdentity* slot_;
  ring::SlotRingReader* ring_;
  DeviceRequests* device_;
  pipeline::Registry* registry_;
  std::vector<pipeline::SlotPtr> rows_;
  std::vector<layout::Lossless> lossless_;  // what is wanted of each row
  layout::SlotControl control_;             // as in the ring
};

}  // namespace cgdebug::ingest
