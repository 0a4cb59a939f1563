// recording_end.h: when a recording has all that it was asked for.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "daemon/core/recording/types.h"
#include "daemon/record/record_selection.h"
#include "daemon/record/recorded_sessions.h"
#include "daemon/record/slot_progress.h"

namespace cgdebug::pipeline {

// Thread: one at a time (Recorder's mutex).
class RecordingEnd {
 public:
  // Outlives it.
  explicit RecordingEnd(const RecordRequest* request);

  // From now on nothing new is taken. False: that was so already.
  bool Begin();
  bool has_begun() const { return has_begun_; }
  // Whether its time is over, but Begin() was not called yet.
  bool IsLate() const;

  void NoteAppend() { last_append_ = Clock::now(); }
  // A replay after the last wanted one was seen.
  void NoteBeyond() { beyond_ = true; }
  // Why a recording that can still be written is over; kNone while it goes on.
  recording::StopReason Reason(const RecordedSessions& sessions,
                               const std::map<SlotPtr, SlotProgress>& slots) const;

 private:
  using Clock = std::chrono::steady_clock;

  const RecordRequest* request_;
  // When request_->owner began, which tells it from a later process of that number; 0: no owner.
  const std::uint64_t owner_ticks_;
  const Clock::time_point started_ = Clock::now();
  Clock::time_point last_append_ = started_;
  bool beyond_ = false;
  bool has_begun_ = false;
  bool is_late_ = false;  // Begin() was called because its time was over
};

}  // namespace cgdebug::pipeline
