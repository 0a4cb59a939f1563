// slot_findings.h: what is found first in one slot: a NaN, an Inf, a failed comparison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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
  // Around the rows of an entry of an op log, of which `row` is any.
  void BeginPage(const pipeline::Snapshot& row);
  void EndPage(const pipeline::Snapshot& row);
  // Whether the row, or the probe that keeps the values of one, holds -Inf on purpose, as far as
  // its log shows. To be asked once of each snapshot, in order. What nothing in the log has
  // written, and changes, is no mask. kNotYet: the finding is added when it can be told.
  LogMasks::Answer IsMask(std::size_t number, const pipeline::SnapshotPtr& snapshot);
  // Looks for the first NaN of the row, and for the first Inf unless it is a mask, or may be one.
  // Its snapshots come in order.
  void Look(const pipeline::SlotPtr& row, std::size_t number, const pipeline::Snapshot& snapshot,
            LogMasks::Answer is_mask);
  // The first failed comparison.
  void AddMismatch(const pipeline::SlotPtr& slot, const layout::Verdict& verdict);
  // Reports what was found, to the sinks and to the job.
  void Report();

 private:
  struct Row {
    ring::FirstNonfinites firsts;               // as in shared memory
    std::optional<ops::OpText> text = {};       // of a row of an op log
    std::optional<std::uint64_t> neg_inf = {};  // of its first snapshot here
    bool changes_neg_inf = false;
    bool is_shown_as_mask = false;
  };

  bool HoldsOpLog() const { return (slot_->registration.flags & layout::kSlotHoldsOpLog) != 0; }
  std::weak_ptr<LogMasks::Later> Later(std::size_t number, const pipeline::SnapshotPtr& snapshot);
  void ShowMask(std::size_t number, const pipeline::SlotPtr& row);
  void Note(const pipeline::SlotPtr& row, std::size_t number, const pipeline::Snapshot& snapshot,
            std::uint64_t nan, std::uint64_t inf);
  void Add(const pipeline::SlotPtr& slot, layout::FindingKind kind,
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
  // Of what the masks cannot tell yet, by number.
  std::map<std::uint64_t, std::shared_ptr<LogMasks::Later>> later_;
  std::uint64_t asked_later_ = 0;
};

}  // namespace cgdebug::ingest
