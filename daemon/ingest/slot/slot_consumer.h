// slot_consumer.h: reads one slot's ring: every snapshot once, every gap exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/ingest/destination.h"
#include "daemon/ingest/device_requests.h"
#include "daemon/ingest/slot/entry_reader.h"
#include "daemon/ingest/slot/ring_contents.h"
#include "daemon/ingest/slot/shown_counters.h"
#include "daemon/ingest/slot/shown_slots.h"
#include "daemon/ingest/slot/slot_clock.h"
#include "daemon/ingest/slot/slot_comparison.h"
#include "daemon/ingest/slot/slot_controls.h"
#include "daemon/ingest/slot/slot_findings.h"
#include "daemon/ingest/slot/slot_progress.h"
#include "libprobe/ring/segment/segment_view.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

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

  // `view`, `masks` and `clock` outlive the consumer. `masks`: of its session. `rows`: those of a
  // slot that holds an op log. `clock`: of the slot's timestamps; null: they come from the host's.
  SlotConsumer(pipeline::SlotPtr slot, ring::SlotRingReader ring, ring::SegmentView* view,
               const Destination& destination, LogMasks* masks,
               const std::vector<ring::OpLogRow>& rows = {}, GpuClock* clock = nullptr);
  SlotConsumer(const SlotConsumer&) = delete;  // the sinks and `device_` keep pointers
  SlotConsumer& operator=(const SlotConsumer&) = delete;

  // The slot of the directory.
  const pipeline::SlotPtr& slot() const { return slot_; }
  // The slots that clients see.
  std::vector<pipeline::SlotPtr> shown_slots() const { return shown_.slots(); }
  bool Shows(const pipeline::SlotPtr& slot) const { return shown_.NumberOf(slot) < shown_.size(); }
  std::int64_t last_timestamp_ns() const { return clock_.last_ns(); }
  ring::HeadWatch head_watch() const { return ring_.head_watch(); }

  // As SlotClock::Watch.
  void WatchClock(std::int64_t looked_ns) { clock_.Watch(looked_ns); }
  // Whether its timestamps are not known in the host's time yet, and it can be left unread a while
  // for that: no replay waits for room.
  bool CanAwaitClock() const;

  // Opens the slot in the sinks, and begins as EntryReader does.
  void Start();

  // Handles one snapshot in three steps: Prepare() copies the next one and computes what is said
  // about it; Commit() hands it to the sinks; Settle() moves the credit after they were flushed.
  // Thread: Prepare() on any one thread, if nothing else of the consumer runs meanwhile.
  bool HasWork() const;
  // How far the producer has written; how far it had, if it has given the slot up since. consumed()
  // is the point up to which everything is consumed or lost.
  pipeline::RingHead head() const;
  std::uint64_t consumed() const { return progress_.consumed; }
  // Whether an earlier daemon consumed the next one.
  bool IsReadingAgain() const { return reader_.IsReadingAgain(); }
  std::uint64_t payload_bytes() const { return slot_->registration.payload_bytes; }
  // The most that reading one entry takes out of shared memory.
  std::uint64_t bytes_to_read() const {
    return slot_->IsOnDevice() ? sizeof(layout::DeviceStats) : payload_bytes();
  }
  void Prepare() { reader_.Prepare(); }
  Step Commit();
  void Settle() { PublishCredit(1); }
  // Whether Prepare() met truncated memory.
  bool cut_off() { return reader_.prepared().cut_off; }
  // Shows the producer's counters and its own to the registry; ends a control that is over.
  void Refresh();
  // As RingContents::Read.
  pipeline::RingContent Read(const pipeline::RingRequest& request, bool producer_alive) {
    return contents_.Read(request, producer_alive);
  }
  // Sets what the producer does from its next replay on (SlotControls). Requires:
  // Shows(change.slot).
  void SetControl(const pipeline::ControlChange& change);
  // Requires: the producer is dead and everything committed is consumed.
  void Finish();
  // Called when the producer gave the slot up, and counted itself what was unread.
  void GiveUp();

  // SlotFeedback.
  layout::Verdict verdict() override { return ring_.verdict(); }
  void SetVerdict(const layout::Verdict& verdict) override;
  Result<void> CanCompare() override { return comparison_.CanCompare(); }
  std::uint64_t consumed_before() const override { return reader_.consumed_before(); }
  std::uint64_t suppressed() const override { return head().suppressed; }
  void AddPrinted(std::uint64_t lines, std::uint64_t on_terminal) override;

 private:
  void Deliver(EntryReader::Prepared* prepared);
  std::uint64_t LastBefore(std::uint64_t replay) const;
  void ReportLoss(std::uint64_t last_replay, std::uint64_t before_replay, layout::LossCause cause,
                  bool before_forced = false);
  void PublishCredit(std::uint64_t entries);

  pipeline::SlotPtr slot_;
  ring::SlotRingReader ring_;
  ring::SegmentView* view_;
  Destination destination_;
  SlotProgress progress_;
  ShownSlots shown_;
  SlotClock clock_;
  DeviceRequests device_;
  SlotControls controls_;
  SlotComparison comparison_;
  SlotFindings findings_;
  EntryReader reader_;
  RingContents contents_;
  ShownCounters counters_;
  layout::SlotHead last_head_ = {};  // while the block was this slot's
};

}  // namespace cgdebug::ingest
