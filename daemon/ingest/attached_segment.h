// attached_segment.h: one job's segment, from the moment it is found until its files are removed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/ingest/segment_slots.h"
#include "daemon/ingest/shown_session.h"
#include "daemon/ingest/slot/slot_consumer.h"
#include "daemon/ingest/slot_passes.h"
#include "daemon/model/registry.h"
#include "libprobe/ring/segment/segment_view.h"

namespace cgdebug::ingest {

// Thread: the ingest thread.
class AttachedSegment {
 public:
  ~AttachedSegment();
  // Becomes the segment's reader and shows the session to the registry. `socket` is this daemon's.
  // Requires: `view` is attached; the caller holds a SigbusGuard.
  // Fails: another daemon reads it.
  static Result<std::unique_ptr<AttachedSegment>> Adopt(std::unique_ptr<ring::SegmentView> view,
                                                        const std::string& socket,
                                                        const Destination& destination);

  const std::string& name() const { return name_; }
  // Until its producer is gone and what it left is read.
  bool alive() const { return alive_; }
  // Whether its producer is gone and what it left is being read.
  bool draining() const { return passes_.draining(); }
  std::size_t slot_count() const { return slots_.all().size(); }
  // Whether its memory was truncated, so that nothing more can be read from it.
  bool broken() const { return broken_; }
  // CLOCK_REALTIME of the newest snapshot; without one, of the job's start.
  std::int64_t last_timestamp_ns() const;
  std::vector<pipeline::SkippedFile> skipped_slots() const;

  // One pass over the slots, at most one snapshot each: BeginPass() appends the slots that have
  // one, in graph order; Commit() hands over what the slot prepared; EndPass() tells whether there
  // was any. Unless `thorough`, a segment whose activity word has not changed costs one cache line.
  // What nobody waits for (left by a dead job, or read by an earlier daemon) is read in passes of
  // limited size, so that it does not delay other jobs.
  void BeginPass(bool thorough, std::vector<SlotConsumer*>* ready);
  void Commit(SlotConsumer* slot);
  bool EndPass();

  // If its producer is gone, later passes read the rest and then end the session.
  void CheckProducer();
  // Tries slots again that could not be opened because the system refused something.
  void RetryRefused();
  // Ends the session because its memory is gone.
  void Abandon();
  // Does nothing if the slot does not belong to this segment any more.
  void SetControl(const pipeline::ControlChange& change);
  void Switch(const pipeline::RingSwitch& rings);
  // Writes into its shared memory what was found in one of its slots.
  void Tell(const pipeline::JobNotice& notice);
  // Sets `content` if the slot belongs to this segment and its ring is still there.
  void Read(const pipeline::RingRequest& request, pipeline::RingContent* content);
  // Appends the heads of all slots that exist now, and shows their counters and the graphs as they
  // are.
  void AddHeads(pipeline::RingHeads* heads);
  // How many entries up to this head, of whichever slot, are not read, or not read again for the
  // memory of last values; of a dead job at least 1 until the session has ended.
  std::uint64_t Unread(const pipeline::RingHead& head) const;
  // Shows the counters of every slot, or those of `count` slots, which take turns.
  void Refresh(std::size_t count = SIZE_MAX);
  // The size of its shared memory; 0 after Release().
  std::uint64_t shm_bytes() const { return view_ == nullptr ? 0 : view_->shm_bytes(); }
  // For a job that ended: gives its shared memory back to other jobs. What the daemon's own memory
  // holds of the job stays.
  void Release();
  // Removes the files and forgets the session.
  void Remove();

  // How many bytes its producer wants to be free in /dev/shm; 0 if it asks for none.
  std::uint64_t RoomWanted() const;
  void AnswerRoom();

 private:
  AttachedSegment(std::unique_ptr<ring::SegmentView> view, const Destination& destination);
  // Ends the session: the producer is gone and everything it left is read.
  void EndDrained();
  void End(pipeline::SessionState state);
  // Tells the sinks of freezes that nobody has dealt with.
  void LookForFreezes();

  const std::string name_;
  std::unique_ptr<ring::SegmentView> view_;  // null after Release()
  Destination destination_;
  pipeline::SessionPtr session_;
  SegmentSlots slots_;
  SlotPasses passes_;
  ShownSession shown_;
  std::size_t next_refresh_ = 0;       // of the slots
  std::int64_t released_last_ns_ = 0;  // last_timestamp_ns() of the slots that are gone
  std::array<std::uint64_t, layout::kMaxFreezeDevices> seen_freezes_ = {};  // serials
  bool alive_ = true;
  bool broken_ = false;
};

}  // namespace cgdebug::ingest
