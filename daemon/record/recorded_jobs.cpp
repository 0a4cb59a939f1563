#include "daemon/record/recorded_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/log/log.h"
#include "daemon/record/job_process.h"

namespace cgdebug::pipeline {

std::optional<RecordRequest> RecordedJobs::Add(const SessionPtr& job) {
  if (!jobs_.emplace(job->uuid, job).second) return std::nullopt;
  std::string label = job->label;  // as part of a file's name
  std::ranges::replace(label, '/', '-');
  RecordRequest request;
  request.directory = RecordingPath(*job, label + "-" + job->key + ".cgrec");
  request.sessions = {job->uuid};
  request.to_disk_only = true;
  return request;
}

recording::RecordingInfo RecordedJobs::Refuse(const SessionPtr& job, std::uint64_t id,
                                              const Error& error) {
  Log("sinks")->error("session {} ({}) is not recorded: {}", job->key, job->label, error.message);
  tell_(job, "this job is not recorded: " + error.message);
  recording::RecordingInfo info;
  info.id = id;
  info.sessions = {job->label};
  info.active = false;
  info.stopped = recording::StopReason::kWriteError;
  info.state = recording::ToText(info.stopped);
  info.error = error.message;
  return info;
}

void RecordedJobs::TellStopped(const RecordRequest& request,
                               const recording::WriterStatus& status) const {
  if (!request.to_disk_only) return;
  for (const std::string& uuid : request.sessions) {
    const auto job = jobs_.find(uuid);
    if (job == jobs_.end()) continue;  // it ended
    tell_(job->second,
          fmt::format("nothing more of this job is recorded into {}: {}, {}", request.directory,
                      recording::ToText(status.stopped), status.error));
  }
}

}  // namespace cgdebug::pipeline
