// recorder.h: the sink that records: the recordings of this daemon, started by clients and by
// probes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/pipeline/sink.h"
#include "daemon/record/active_recording.h"
#include "daemon/record/open_slots.h"
#include "daemon/record/recorded_jobs.h"
#include "libprobe/ring/segment/shared_mark.h"

namespace cgdebug::pipeline {

// Slots registered with TensorRecord(to="disk") are recorded from their first snapshot on, one
// recording per session, into RecordingPath(<label>-<key>.cgrec). The next daemon continues it.
//
// Thread: any. Writing happens on the thread that feeds, under one mutex; closing and its waiting
// for the disk on the caller of Stop() or on its own thread.
class Recorder final : public Sink {
 public:
  using Tell = RecordedJobs::Tell;
  using SetLossless = OpenSlots::SetLossless;

  // `rings` outlives the recorder. Null: its caller has read everything there is.
  Recorder(const recording::WriterOptions& options, Tell tell, SetLossless set_lossless = {},
           RingReads* rings = nullptr);
  ~Recorder() override;  // closes what is open
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // --- for clients. Both wait for the thread that feeds.
  // The recording begins after the head that each ring has when this is called.
  Result<RecordingInfo> Start(RecordRequest request);
  // `which`: an id, a directory, or empty for all that a client started. The recording ends with
  // the head that each ring has when this is called: everything up to there is in it or counted as
  // lost. Fails: there is no such recording.
  Result<std::vector<RecordingInfo>> Stop(const std::string& which, recording::StopReason reason);
  std::vector<RecordingInfo> List() const;  // active ones, then the last that ended
  // Waits until the recordings that are over by now are closed on the disk. False if that takes
  // longer.
  bool WaitForFinishing(std::chrono::nanoseconds patience);
  bool busy() const;
  // The options of every recording unless its request says otherwise.
  const recording::WriterOptions& options() const { return options_; }

  // --- Sink. Thread: one at a time.
  void OpenSlot(const SlotPtr& slot, SlotFeedback& feedback) override;
  void Consume(const Delivery& delivery, SlotFeedback& feedback) override;
  void Lose(const Gap& gap) override;
  void Found(const Finding& finding) override;
  void CloseSlot(const SlotPtr& slot, std::uint64_t last_replay, SlotFeedback& feedback) override;
  void NotSeen(const SessionPtr& session, const layout::NotSeen& not_seen) override;
  void EndSession(const SessionPtr& session, bool died) override;
  // After this, everything consumed so far is in the page cache.
  void Flush() override;

 private:
  using Active = std::shared_ptr<ActiveRecording>;
  // With mutex_ held.
  void RecordingsChanged();
  void StartToDisk(const SessionPtr& job);
  void FlushActive();
  // Lets the recordings that `is_meant` selects take what the rings have now, and nothing more.
  void Drain(const std::function<bool(const Active&)>& is_meant);
  void AddEnded(RecordingInfo info);
  // Without mutex_.
  RecordingInfo Finish(const Active& recording, recording::StopReason reason);
  void Watch();

  const recording::WriterOptions options_;
  RingReads* const rings_;
  mutable std::mutex mutex_;
  std::vector<Active> active_;
  std::vector<Active> finishing_;  // no longer active_, not yet ended_
  OpenSlots open_slots_;
  // Of sessions that have not ended.
  std::map<SessionPtr, std::map<layout::NotSeenKind, layout::NotSeen>> not_seen_;
  ring::SharedMark mark_{ring::MarkKind::kRecorder};
  RecordedJobs jobs_;
  std::deque<RecordingInfo> ended_;
  std::uint64_t last_id_ = 0;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::condition_variable finished_;
  std::thread watcher_;
};

}  // namespace cgdebug::pipeline
