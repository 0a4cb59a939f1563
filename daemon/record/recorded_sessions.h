// recorded_sessions.h: the sessions that a recording has, and what each says that nobody saw.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/recording/recording_writer.h"
#include "daemon/pipeline/sink.h"
#include "proto/layout/not_seen.h"

namespace cgdebug::pipeline {

// Thread: one at a time (Recorder's mutex).
class RecordedSessions {
 public:
  // Outlives them.
  explicit RecordedSessions(recording::RecordingWriter* writer) : writer_(writer) {}

  // Its id in the recording, which has it from now on; nullopt: the recording takes no more.
  std::optional<std::uint32_t> Add(const SessionPtr& session);
  // Requires: Add().
  std::uint32_t IdOf(const SessionPtr& session) const { return ids_.at(session); }
  const std::vector<std::string>& labels() const { return labels_; }

  // False: it was not in the recording, or has ended before.
  bool End(const SessionPtr& session) { return alive_.erase(session) != 0; }
  // There was one, and each has ended.
  bool HaveEnded() const { return !ids_.empty() && alive_.empty(); }

  // What the session says of one kind as the recording begins: what is gone by then is none of its.
  void BeginNotSeen(const SessionPtr& session, const layout::NotSeen& not_seen);
  // What it says later, without what was gone then.
  layout::NotSeen SinceBegin(const SessionPtr& session, const layout::NotSeen& told) const;

 private:
  recording::RecordingWriter* writer_;
  std::map<SessionPtr, std::uint32_t> ids_;
  std::set<SessionPtr> alive_;
  std::vector<std::string> labels_;
  std::map<std::pair<SessionPtr, layout::NotSeenKind>, layout::NotSeen::Gone> gone_before_;
};

}  // namespace cgdebug::pipeline
