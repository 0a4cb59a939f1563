#include "daemon/record/job_process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "daemon/core/base/unique_fd.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::pipeline {
namespace {

namespace fs = std::filesystem;

std::uint64_t OwnPidNamespace() {
  struct stat info = {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

std::string ProcPath(std::int32_t pid, std::string_view name) {
  return "/proc/" + std::to_string(pid) + "/" + std::string(name);
}

// Field 22 of /proc/<pid>/stat, counted from behind the command, which may hold spaces; 0 when
// there is no such process.
std::uint64_t StartTicks(std::int32_t pid) {
  char text[1024] = {};
  const UniqueFd fd(open(ProcPath(pid, "stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || read(fd.get(), text, sizeof(text) - 1) <= 0) return 0;
  const char* cursor = std::strrchr(text, ')');
  for (int field = 2; cursor != nullptr && field < 22; ++field) {
    cursor = std::strchr(cursor + 1, ' ');
  }
  return cursor == nullptr ? 0 : std::strtoull(cursor, nullptr, 10);
}

std::string OwnEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Only a daemon that knew the job makes one, so its place was the job's to choose.
bool IsRecordingOf(const SessionIdentity& job, const std::string& path) {
  std::error_code failure;
  if (!fs::is_directory(path, failure)) return false;
  const auto reader = recording::RecordingReader::Open(path);
  if (!reader.ok()) return false;
  const auto& sessions = (*reader)->sessions();
  return std::any_of(sessions.begin(), sessions.end(),
                     [&](const auto& session) { return session.uuid == job.uuid; });
}

// Of recordings of jobs that nobody vouches for.
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
  if (job.pid_namespace == 0 || job.pid_namespace != OwnPidNamespace()) return false;
  return job.is_pid_true && job.pid > 0 && job.pid_start_ticks != 0 &&
         job.pid_start_ticks == StartTicks(job.pid);
}

std::string RecordingPath(const SessionIdentity& job, const std::string& name) {
  const bool same_files = job.pid_namespace != 0 && job.pid_namespace == OwnPidNamespace();
  if (same_files && fs::path(job.recordings).is_absolute()) {
    const std::string path = fs::path(job.recordings) / name;
    if (job.is_pid_true || IsRecordingOf(job, path)) return path;
  }
  return OwnRecordings() / name;
}

}  // namespace cgdebug::pipeline
