// attached_segment.h: one job's segment, from the moment it is found until its files are removed.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/ingest/slot_consumer.h"
#include "daemon/model/registry.h"
#include "libprobe/ring/segment_view.h"

namespace cgdebug::ingest {

// Thread: the ingest thread.
class AttachedSegment {
 public:
  ~AttachedSegment();
  // Takes the reader's end and shows the session to the registry. `socket`: of this daemon.
  // Requires: `view` is attached; the caller holds a SigbusGuard.
  // Fails: another daemon reads it.
  static Result<std::unique_ptr<AttachedSegment>> Adopt(std::unique_ptr<ring::SegmentView> view,
                                                        const std::string& socket,
                                                        const Destination& destination);

  const std::string& name() const { return name_; }
  // Until its producer is gone and what that left is read.
  bool alive() const { return alive_; }
  // Its producer is gone, and what that left is being read.
  bool draining() const { return draining_; }
  std::size_t slot_count() const { return graph_order_.size(); }
  // Its memory was cut off: nothing more can be read from it.
  bool broken() const { return broken_; }
  // CLOCK_REALTIME of the newest snapshot; when the job started, if there is none.
  std::int64_t last_timestamp_ns() const;
  std::vector<pipeline::SkippedFile> skipped_slots() const;

  // One pass over the slots, one snapshot each at most: BeginPass() appends those that have one, in
  // graph order; Commit() hands over what the slot prepared; EndPass() tells whether there was any.
  // Unless `thorough`, a segment whose activity word stands still costs one cache line. What nobody
  // waits for (of a dead job, or read by an earlier daemon) is read in passes of bounded size, so
  // that it does not keep other jobs waiting.
  void BeginPass(bool thorough, std::vector<SlotConsumer*>* ready);
  void Commit(SlotConsumer* slot);
  bool EndPass();

  // If its producer is gone, the passes from now on read the rest, and end the session.
  void CheckProducer();
  // Slots that could not be opened because the system refused something are tried again.
  void RetryRefused();
  // Ends it because its memory is gone.
  void Abandon();
  // Does nothing when the slot is not, or no longer, of this segment.
  void SetControl(const pipeline::ControlChange& change);
  // `content` when the slot is of this segment and its ring is still there.
  void Read(const pipeline::RingRequest& request, pipeline::RingContent* content);
  // The heads of all slots there are now.
  void AddHeads(pipeline::RingHeads* heads);
  // Whether it has nothing to read up to this head, of whichever slot, nor again for the memory of
  // last values; of a dead job, whether it has ended here.
  bool IsRead(const pipeline::RingHead& head) const;
  // Shows the counters of every slot.
  void Refresh();
  // Its shared memory; 0 when that is given back.
  std::uint64_t shm_bytes() const { return view_ == nullptr ? 0 : view_->shm_bytes(); }
  // Of a job that ended: gives its shared memory to other jobs. What the daemon's own memory holds
  // of it stays.
  void Release();
  // Removes the files and forgets the session.
  void Remove();

  // How many bytes its producer wants to be free in /dev/shm; 0: it asks for none.
  std::uint64_t RoomWanted() const;
  void AnswerRoom();

 private:
  struct Refused {
    std::string reason;
    bool may_pass = false;  // when it is tried again
  };
  AttachedSegment(std::unique_ptr<ring::SegmentView> view, const Destination& destination);
  void ScanDirectory();
  void OpenSlot(std::uint32_t index, std::uint64_t word);
  void RefuseSlot(std::uint32_t index, const std::string& reason, bool may_pass);
  void CloseSlot(std::uint32_t index);
  // One snapshot of the slot; whether there was one.
  bool CommitOne(SlotConsumer* slot);
  void Settle();
  // The producer is gone, and everything that it left is read.
  void EndDrained();
  void ShowSession();
  void End(pipeline::SessionState state);

  const std::string name_;
  std::unique_ptr<ring::SegmentView> view_;  // until a job that said goodbye is read to the end
  Destination destination_;
  pipeline::SessionPtr session_;
  std::vector<std::uint64_t> words_;                  // of the directory, as last seen
  std::vector<std::unique_ptr<SlotConsumer>> slots_;  // by directory index; may be empty
  std::vector<SlotConsumer*> graph_order_;
  std::deque<pipeline::SlotPtr> given_up_;    // still shown, oldest first
  std::map<std::uint32_t, Refused> refused_;  // by directory index
  std::int64_t released_last_ns_ = 0;         // last_timestamp_ns() of the slots that are gone
  std::uint64_t activity_ = 0;                // when the pass began
  std::uint64_t seen_activity_ = 0;           // up to which everything is read
  std::uint64_t retried_activity_ = 0;        // at which a snapshot was seen coming
  bool consumed_any_ = false;                 // in this pass
  bool coming_ = false;                       // in this pass: one that is not whole yet
  bool put_off_ = false;                      // in this pass: slots for the next one
  std::vector<SlotConsumer*> unsettled_;      // consumed of, credit not moved yet
  std::uint64_t unsettled_bytes_ = 0;
  bool in_pass_ = false;
  bool ever_polled_ = false;
  bool draining_ = false;
  std::size_t next_slot_ = 0;     // of graph_order_, with which a pass of a dead job begins
  std::uint64_t drain_left_ = 0;  // snapshots that a dead job can have left at most
  std::size_t empty_passes_ = 0;  // in a row, of a dead job
  bool alive_ = true;
  bool broken_ = false;
};

}  // namespace cgdebug::ingest
