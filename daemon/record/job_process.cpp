#include "daemon/record/job_process.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "daemon/core/recording/recording_reader.h"
#include "libprobe/ring/segment/process_origin.h"

namespace cgdebug::pipeline {
namespace {

namespace fs = std::filesystem;

std::string OwnEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A recording of this job there was made by a daemon that had verified the job, so the path is the
// job's.
bool IsRecordingOf(const SessionIdentity& job, const std::string& path) {
  std::error_code failure;
  if (!fs::is_directory(path, failure)) return false;
  const auto reader = recording::RecordingReader::Open(path);
  if (!reader.ok()) return false;
  const auto& sessions = (*reader)->sessions();
  return std::any_of(sessions.begin(), sessions.end(),
                     [&](const auto& session) { return session.uuid == job.uuid; });
}

// The folder for recordings of jobs whose identity the kernel does not confirm.
fs::path OwnRecordings() {
  const std::string chosen = OwnEnvironment("CGDEBUG_DIR");
  if (fs::path(chosen).is_absolute()) return chosen;
  const std::string state = OwnEnvironment("XDG_STATE_HOME");
  const fs::path base = fs::path(state).is_absolute()
                            ? fs::path(state)
                            : fs::path(OwnEnvironment("HOME")) / ".local/state";
  return base / "cgdebug/runs";
}

}  // namespace

bool IsReachable(const SessionIdentity& job) {
  if (job.pid_namespace == 0 || job.pid_namespace != ring::OwnPidNamespace()) return false;
  return job.is_pid_true && job.pid > 0 && job.pid_start_ticks != 0 &&
         job.pid_start_ticks == ring::StartTicks(job.pid);
}

std::string RecordingPath(const SessionIdentity& job, const std::string& name) {
  const bool same_files = job.pid_namespace != 0 && job.pid_namespace == ring::OwnPidNamespace();
  if (same_files && fs::path(job.recordings).is_absolute()) {
    const std::string path = fs::path(job.recordings) / name;
    if (job.is_pid_true || IsRecordingOf(job, path)) return path;
  }
  return OwnRecordings() / name;
}

}  // namespace cgdebug::pipeline
