// slot_findings.h: what is found first in one slot: a NaN, an Inf, a failed comparison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/ingest/destination.h"
#include "libprobe/ring/segment_view.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// The firsts of each row are kept in shared memory, so that the next daemon knows them. A finding
// waits until the sinks have had everything that came before it.
//
// Thread: the ingest thread, under a SigbusGuard.
class SlotFindings {
 public:
  // All of them outlive this. `slot`: that of the directory.
  SlotFindings(const pipeline::SlotIdentity* slot, ring::SlotRingReader* ring,
               ring::SegmentView* view, const Destination* destination)
      : slot_(slot), ring_(ring), view_(view), destination_(destination) {}

  // Reads what earlier daemons found in row `number`, which clients see as `row`. Rows are started
  // in their order.
  void StartRow(const pipeline::SlotPtr& row, std::size_t number);
  // Looks for the first NaN and the first Inf of the row. Its snapshots come in order.
  void Look(const pipeline::SlotPtr& row, std::size_t number, const pipeline::Snapshot& snapshot);
  // The first failed comparison.
  void AddMismatch(const pipeline::SlotPtr& slot, const layout::Verdict& verdict);
  // Reports what was found, to the sinks and to the job.
  void Report();

 private:
  bool HoldsOpLog() const { return (slot_->registration.flags & layout::kSlotHoldsOpLog) != 0; }
  void Add(const pipeline::SlotPtr& slot, pipeline::Finding::Kind kind,
           const ring::FirstNonfinite& first);
  // Writes what was found first in the job into its segment, for cgdebug.check() and step().
  void ReportToJob(const pipeline::Finding& finding);

  const pipeline::SlotIdentity* slot_;
  ring::SlotRingReader* ring_;
  ring::SegmentView* view_;
  const Destination* destination_;
  std::vector<ring::FirstNonfinites> firsts_;  // of each row, as in shared memory
  std::vector<pipeline::Finding> waiting_;
  bool has_mismatch_ = false;
};

}  // namespace cgdebug::ingest
