// active_recording.h: one recording while it grows: what is written into it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/recording_writer.h"
#include "daemon/pipeline/sink.h"
#include "daemon/record/record_selection.h"
#include "daemon/record/recorded_sessions.h"
#include "daemon/record/recording_end.h"
#include "daemon/record/ring_reads.h"
#include "daemon/record/slot_progress.h"

namespace cgdebug::pipeline {

using recording::RecordingInfo;

// Thread: one at a time (Recorder's mutex).
class ActiveRecording {
 public:
  // `options` fills in what the request leaves open; its max_bytes always holds.
  // Fails: a bad selection, the directory cannot be written.
  static Result<std::unique_ptr<ActiveRecording>> Start(std::uint64_t id, RecordRequest request,
                                                        recording::WriterOptions options);

  std::uint64_t id() const { return id_; }
  const RecordRequest& request() const { return selection_.request(); }
  const RecordSelection& selection() const { return selection_; }
  RecordingInfo info() const;
  recording::RecordingWriter& writer() { return *writer_; }

  // `seen`: the last ordinal that came before the recording, of replay `seen_replay` or an
  // earlier one. Requires: selection().Wants().
  // `suppressed`: how many replays the live control had kept back by then.
  void Open(const SlotPtr& slot, std::uint64_t seen, std::uint64_t seen_replay = 0,
            std::uint64_t suppressed = 0);
  // `suppressed`: how many replays the live control has kept back so far. Those that the slot's
  // actions wanted are missing.
  void Consume(const StoredSnapshot& stored, const ComparisonPtr& comparison = nullptr,
               std::uint64_t suppressed = 0);
  void Lose(const Gap& gap);
  // Counts replays that were wanted and of which there is no snapshot, or only its statistics.
  // They lie in replays first..last.
  void LoseReplays(const SlotPtr& slot, layout::LossCause cause, std::uint64_t count,
                   std::uint64_t first_replay, std::uint64_t last_replay);
  void Close(const SlotPtr& slot, std::uint64_t last_replay, std::uint64_t suppressed = 0);
  // Takes what the daemon found while it read; ignores replays before the recording.
  void Found(const Finding& finding);
  // From now on takes nothing after these heads, and nothing from new slots.
  void EndAt(const std::vector<RingHead>& heads);
  // Writes down where the recording ends in each slot. What was not read up to there is lost.
  void CloseSlots();
  void Flush() { Note(writer_->Flush()); }
  // What the session says of one kind as the recording begins: what is gone by then is none of its.
  void BeginNotSeen(const SessionPtr& session, const layout::NotSeen& not_seen) {
    sessions_.BeginNotSeen(session, not_seen);
    NotSeen(session, not_seen);
  }
  // Whatever the selection is: which probes it is about is known of the first one alone.
  void NotSeen(const SessionPtr& session, const layout::NotSeen& not_seen);
  void EndSession(const SessionPtr& session, bool died);

  // Whether its time is over, but EndAt() was not called yet.
  bool IsLate() const { return end_.IsLate(); }
  // Why it ended; kNone while it goes on.
  recording::StopReason Over() const;

 private:
  ActiveRecording(std::uint64_t id, RecordSelection selection, std::int64_t started_ns,
                  std::unique_ptr<recording::RecordingWriter> writer);
  void Account(SlotProgress* state, const SlotProgress::Missing& missing);
  void LoseKeptBack(const SlotPtr& slot, const SlotProgress& before, std::uint64_t last_replay,
                    std::uint64_t lost);
  // Counts what the head says was kept back and no period told of, and marks where the slot ends.
  void EndSlot(const SlotPtr& slot, const SlotProgress& state, std::uint64_t last_replay);
  void AddMark(recording::Mark mark);  // with the time
  void Note(const Result<void>& written);

  const std::uint64_t id_;
  const RecordSelection selection_;
  const std::int64_t started_ns_;
  RecordingEnd end_;
  std::unique_ptr<recording::RecordingWriter> writer_;
  RecordedSessions sessions_;
  std::map<SlotPtr, SlotProgress> slots_;
  std::uint64_t slot_count_ = 0;  // including closed ones
  bool said_stopped_ = false;
};

}  // namespace cgdebug::pipeline
