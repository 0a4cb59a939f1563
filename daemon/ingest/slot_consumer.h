// slot_consumer.h: reads one slot's ring: every snapshot once, every gap exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/ingest/device_requests.h"
#include "daemon/ingest/gpu_clock.h"
#include "daemon/model/control_queue.h"
#include "daemon/model/registry.h"
#include "daemon/pipeline/payload_pool.h"
#include "daemon/pipeline/sink.h"
#include "daemon/pipeline/snapshot_maker.h"
#include "daemon/record/ring_reads.h"
#include "libprobe/ring/segment_view.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// What ingest works with.
struct Destination {
  pipeline::Registry* registry;      // the counters and states that it reads out of shared memory
  pipeline::ControlQueue* controls;  // what clients want of slots
  pipeline::RingReads* reads;        // what they want of rings
  pipeline::PayloadPool* payloads;
  pipeline::Sink* sink;  // gets everything else
};

// produced = consumed + lost + unread, over all daemons that ever read the slot: both counts
// continue from the slot's credit.
//
// Thread: the ingest thread, under a SigbusGuard.
class SlotConsumer final : public pipeline::SlotFeedback {
 public:
  enum class Step {
    kIdle,      // nothing new
    kComing,    // the head announces an entry that is not visible yet
    kConsumed,  // one snapshot went to the sinks
    kGone,      // the producer gave the slot up
  };

  // `view` and `clock` outlive the consumer. `rows`: those of a slot that holds an op log. `clock`:
  // of the slot's timestamps; null: they come from the host's.
  SlotConsumer(pipeline::SlotPtr slot, ring::SlotRingReader ring, ring::SegmentView* view,
               const Destination& destination, const std::vector<ring::OpLogRow>& rows = {},
               GpuClock* clock = nullptr);
  SlotConsumer(const SlotConsumer&) = delete;  // the sinks and `device_` keep pointers
  SlotConsumer& operator=(const SlotConsumer&) = delete;

  // The slot of the directory.
  const pipeline::SlotPtr& slot() const { return slot_; }
  // The slots that clients see: this slot, or one per row of its op log. Each ring entry is one
  // snapshot of every row, so a lost entry is a loss of every row.
  std::vector<pipeline::SlotPtr> shown_slots() const;
  bool Shows(const pipeline::SlotPtr& slot) const { return NumberOf(slot) < shown_.size(); }
  std::int64_t last_timestamp_ns() const { return last_timestamp_ns_; }

  // Shows the slot's newest timestamp to its clock. `looked_ns`: by the host's clock, when this was
  // last called, or later if nothing was committed since.
  void WatchClock(std::int64_t looked_ns);
  // Whether its timestamps are not known in the host's time yet, and it can be left unread a while
  // for that: no replay waits for room.
  bool CanAwaitClock() const;

  // Opens the slot in the sinks. Reads the newest of the entries again that an earlier daemon
  // consumed and that are still in the ring, for the memory of last values only.
  void Start();

  // Handles one snapshot in three steps: Prepare() copies the next one and computes what is said
  // about it; Commit() hands it to the sinks; Settle() moves the credit after they were flushed.
  // Thread: Prepare() on any one thread, if nothing else of the consumer runs meanwhile.
  bool HasWork() const;
  // How far the producer has written. consumed() is the point up to which everything is consumed or
  // lost.
  pipeline::RingHead head() const;
  std::uint64_t consumed() const { return consumed_; }
  // Whether an earlier daemon consumed the next one.
  bool IsReadingAgain() const { return again_ != 0; }
  std::uint64_t payload_bytes() const { return slot_->registration.payload_bytes; }
  // The most that reading one entry takes out of shared memory.
  std::uint64_t bytes_to_read() const {
    return slot_->IsOnDevice() ? sizeof(layout::DeviceStats) : payload_bytes();
  }
  void Prepare();
  Step Commit();
  void Settle() { PublishCredit(1); }
  // Whether Prepare() met truncated memory.
  bool cut_off() const { return cut_off_; }
  // Shows the producer's counters and its own to the registry; ends a control that is over.
  void Refresh();
  // What is in the ring, consumed or not. Asks for values that are on the device, unless the
  // producer is gone. Requires: Shows(request.slot).
  pipeline::RingContent Read(const pipeline::RingRequest& request, bool producer_alive);
  // Sets what the producer does from its next replay on. The rows of an op log are one slot to the
  // producer: it loses nothing while a recording needs every snapshot of one of them, and whatever
  // else is set holds for all.
  void SetControl(const pipeline::ControlChange& change);
  // Requires: the producer is dead and everything committed is consumed.
  void Finish();
  // Called when the producer gave the slot up, and counted itself what was unread.
  void GiveUp();

  // SlotFeedback.
  layout::Verdict verdict() override { return ring_.verdict(); }
  void SetVerdict(const layout::Verdict& verdict) override;
  Result<void> CanCompare() override;
  std::uint64_t consumed_before() const override { return consumed_before_; }
  std::uint64_t suppressed() const override { return ring_.head().suppressed; }
  void AddPrinted(std::uint64_t lines, std::uint64_t on_terminal) override;

 private:
  // One of the slots that clients see.
  struct ShownSlot {
    pipeline::SlotPtr slot;
    pipeline::SnapshotMaker maker;
    pipeline::StoredSnapshot made = {};  // what Prepare() left for Commit()
    ring::FirstNonfinites firsts = {};   // as in shared memory
    layout::Lossless lossless = layout::Lossless::kAsRegistered;
  };

  // Converts the writer's timestamp to the host's time; the result is never later than now.
  std::int64_t HostTime(std::int64_t timestamp_ns, std::int64_t not_before_ns = 0) const;
  bool HoldsOpLog() const { return (slot_->registration.flags & layout::kSlotHoldsOpLog) != 0; }
  std::size_t NumberOf(const pipeline::SlotPtr& slot) const;  // shown_.size() if it has none
  ring::ReadStatus ReadRing(std::uint64_t ordinal, ring::Entry* entry,
                            ring::PayloadId held = {}) const;
  ring::ReadStatus ReadNext(ring::PayloadId held);
  bool NeedsAllAgain() const;
  void PrepareAgain();
  void MakeSnapshot();
  Result<std::vector<std::byte>> ReadExpected();
  bool ComparesFirst() const { return (slot_->registration.flags & layout::kCompareFirst) != 0; }
  // With ComparesFirst(): what is expected of the entry that was read, and of those after it.
  void TakeReference();
  void FindReference();
  // With ComparesProbe(): what the other slot has of the entry's replay.
  bool ComparesProbe() const { return (slot_->registration.flags & layout::kCompareProbe) != 0; }
  void OpenOther();
  pipeline::ComparisonPtr CompareWithOther(std::span<const std::byte> values) const;
  Result<numerics::CompareResult> ByDevice() const;
  // Null if no comparison is wanted or possible.
  pipeline::ComparisonPtr Compare();
  void Deliver(bool seen_before);
  void DeliverOne(ShownSlot* shown, bool seen_before);
  void NoteFirsts(ShownSlot* shown, const pipeline::Snapshot& snapshot);
  void AddFinding(const pipeline::SlotPtr& slot, pipeline::Finding::Kind kind,
                  const ring::FirstNonfinite& first);
  void DropMade();
  void TellLoss(pipeline::Gap gap);
  void TellClosed(std::uint64_t last_replay);
  void ShowCounters(pipeline::Counters counters, bool retired);
  pipeline::Reached ReachedBy(const pipeline::SlotIdentity& row) const;
  layout::Lossless LosslessWanted() const;
  void TellFindings();
  // Writes what was found first in the job into its segment, for cgdebug.check() and step().
  void TellJob(const pipeline::Finding& finding);
  void ApplyControl(const layout::SlotControl& control);
  bool ControlIsOver(const layout::SlotHead& head) const;
  std::uint64_t LastBefore(std::uint64_t replay) const;
  void Lose(std::uint64_t first_readable);
  void ReportLoss(std::uint64_t last_replay, std::uint64_t before_replay, layout::LossCause cause,
                  bool before_forced = false);
  void PublishCredit(std::uint64_t entries);

  pipeline::SlotPtr slot_;
  ring::SlotRingReader ring_;
  DeviceRequests device_;
  ring::SegmentView* view_;
  Destination destination_;
  GpuClock* clock_;
  std::optional<std::int64_t> seen_stamp_ns_;  // by WatchClock()
  // What Prepare() left for Commit().
  ring::ReadStatus status_ = ring::ReadStatus::kNone;
  bool no_memory_ = false;  // with kDamaged: only the place of the entry is known
  bool cut_off_ = false;
  ring::Entry entry_;
  pipeline::ComparisonPtr comparison_;
  // The payload of the last snapshot with values, if the slot skips unchanged ones. It need not be
  // copied again while somebody still has it.
  ring::PayloadId last_payload_;

  // With kActionCompare. Not set: the first snapshot has not come, and will be this.
  std::optional<Result<std::vector<std::byte>>> expected_;
  std::optional<ring::SlotRingReader> other_;
  std::vector<ShownSlot> shown_;
  std::uint64_t consumed_ = 0;  // ordinal up to which everything is consumed or lost
  std::uint64_t lost_ = 0;      // of those
  std::uint64_t consumed_before_ = 0;
  // The next ordinal that is read again, up to consumed_before_; 0 = none.
  std::uint64_t again_ = 0;
  bool is_again_ = false;  // what Prepare() left was consumed before
  std::uint64_t unreported_lost_ = 0;
  std::uint64_t lost_at_death_ = 0;
  std::uint64_t lost_damaged_ = 0;    // of those lost
  std::uint64_t lost_no_memory_ = 0;  // likewise
  std::uint64_t bytes_ = 0;
  layout::SlotControl control_;              // as in the ring
  std::vector<pipeline::Finding> findings_;  // not yet told to the sinks
  bool mismatch_told_ = false;
  pipeline::Counters counters_;  // as the registry has them, if it has any
  bool shows_counters_ = false;
  bool shows_retired_ = false;
  std::int64_t shows_timestamp_ns_ = 0;
  std::uint64_t shows_reached_ = 0;
  std::uint64_t reached_ = 0;  // of the head, as it was last seen
  std::int64_t reached_ns_ = 0;
  std::int64_t last_timestamp_ns_ = 0;
  std::int64_t made_timestamp_ns_ = 0;  // the newest of the snapshots that were made
};

}  // namespace cgdebug::ingest
