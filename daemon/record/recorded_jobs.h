// recorded_jobs.h: the jobs that asked to be recorded, and what they are told of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/recording_writer.h"
#include "daemon/pipeline/sink.h"
#include "daemon/record/record_selection.h"

namespace cgdebug::pipeline {

// Thread: one at a time (Recorder's mutex).
class RecordedJobs {
 public:
  // Tells a job that asked to be recorded why it is not; never blocks. Thread: any.
  using Tell = std::function<void(const SessionPtr& job, const std::string& text)>;

  explicit RecordedJobs(Tell tell) : tell_(std::move(tell)) {}

  // What is to be recorded of it; nullopt: it has asked before.
  std::optional<RecordRequest> Add(const SessionPtr& job);
  void End(const SessionPtr& job) { jobs_.erase(job->uuid); }
  // Its recording cannot be written. Returns what `record list` shows of it.
  recording::RecordingInfo Refuse(const SessionPtr& job, std::uint64_t id, const Error& error);
  // Such a recording has ended by itself: says so to its job, if that goes on.
  void TellStopped(const RecordRequest& request, const recording::WriterStatus& status) const;

 private:
  const Tell tell_;
  std::map<std::string, SessionPtr> jobs_;  // by uuid
};

}  // namespace cgdebug::pipeline
