#include "daemon/record/recording_end.h"

#include "libprobe/ring/segment/process_origin.h"

namespace cgdebug::pipeline {
namespace {

using recording::StopReason;

// If every probe has its replays, and nothing came for this long, no other probe is in the middle
// of one.
constexpr auto kQuiet = std::chrono::milliseconds(300);

}  // namespace

RecordingEnd::RecordingEnd(const RecordRequest* request)
    : request_(request), owner_ticks_(request->owner == 0 ? 0 : ring::StartTicks(request->owner)) {}

bool RecordingEnd::Begin() {
  if (has_begun_) return false;
  is_late_ = IsLate();
  has_begun_ = true;
  return true;
}

bool RecordingEnd::IsLate() const {
  return !has_begun_ && request_->duration.count() != 0 &&
         Clock::now() - started_ >= request_->duration;
}

StopReason RecordingEnd::Reason(const RecordedSessions& sessions,
                                const std::map<SlotPtr, SlotProgress>& slots) const {
  const bool is_owned = owner_ticks_ != 0 && ring::StartTicks(request_->owner) == owner_ticks_;
  if (sessions.HaveEnded() && !is_owned) return StopReason::kJobEnded;
  // If a client stops the recording, the client gives the reason.
  if (has_begun_) return is_late_ ? StopReason::kReached : StopReason::kNone;
  if (request_->replays == 0) return StopReason::kNone;
  bool any = false;
  for (const auto& [slot, state] : slots) {
    any = any || state.done || state.has_last;
    // Waits for slots that have begun, not for slots that were never replayed, nor for conditional
    // bodies, which need not run again.
    if (state.first_replay != 0 && !state.done && !state.in_body) return StopReason::kNone;
  }
  const bool quiet = Clock::now() - last_append_ >= kQuiet;
  return any && (beyond_ || quiet) ? StopReason::kReached : StopReason::kNone;
}

}  // namespace cgdebug::pipeline
