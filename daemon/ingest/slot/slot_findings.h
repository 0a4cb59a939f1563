// slot_findings.h: what is found first in one slot: a NaN, an Inf, a failed comparison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/core/ops/op_text.h"
#include "daemon/ingest/destination.h"
#include "daemon/ingest/slot/log_masks.h"
#include "libprobe/ring/segment/segment_view.h"
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
               ring::SegmentView* view, LogMasks* masks, const Destination* destination)
      : slot_(slot), ring_(ring), view_(view), masks_(masks), destination_(destination) {}

  // Reads what earlier daemons found in row `number`, which clients see as `row`. Rows are started
  // in their order.
  void StartRow(const pipeline::SlotPtr& row, std::size_t number);
  // Whether the row holds -Inf on purpose, as far as its log shows. To be asked once of each
  // snapshot, in order. What nothing in the log has written, and changes, is no mask.
  bool IsMask(std::size_t number, const pipeline::Snapshot& snapshot);
  // Looks for the first NaN and the first Inf of the row, except in masks. Its snapshots come in
  // order.
  void Look(const pipeline::SlotPtr& row, std::size_t number, const pipeline::Snapshot& snapshot);
  // The first failed comparison.
  void AddMismatch(const pipeline::SlotPtr& slot, const layout::Verdict& verdict);
  // Reports what was found, to the sinks and to the job.
  void Report();

 private:
  struct Row {
    ring::FirstNonfinites firsts;               // as in shared memory
    std::optional<ops::OpText> text = {};       // of a row of an op log, once it is needed
    std::optional<std::uint64_t> neg_inf = {};  // of its first snapshot here
    bool changes_neg_inf = false;
    bool is_shown_as_mask = false;
  };

  bool HoldsOpLog() const { return (slot_->registration.flags & layout::kSlotHoldsOpLog) != 0; }
  void Add(const pipeline::SlotPtr& slot, pipeline::Finding::Kind kind,
           const ring::FirstNonfinite& first);
  // Writes what was found first in the job into its segment, for cgdebug.check() and step().
  void ReportToJob(const pipeline::Finding& finding);

  const pipeline::SlotIdentity* slot_;
  ring::SlotRingReader* ring_;
  ring::SegmentView* view_;
  LogMasks* masks_;
  const Destination* destination_;
  std::vector<Row> rows_;
  std::vector<pipeline::Finding> waiting_;
  bool has_mismatch_ = false;
};

}  // namespace cgdebug::ingest
