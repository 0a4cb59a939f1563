#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "client/cli/doctor/checks.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/numerics/format.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;

struct Segment {
  std::string path;  // of the control file
  std::uint64_t bytes = 0;
  bool is_dead = false;
  int reader_pid = 0;  // 0 = none; -1 = one in another PID namespace
};

// The pid that holds the lock on `byte`; 0 if it is free. Asking takes no lock.
int LockHolder(int fd, std::int64_t byte) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  if (::fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
  return lock.l_pid > 0 ? lock.l_pid : -1;
}

std::uint64_t BytesOnTmpfs(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? std::uint64_t(info.st_blocks) * 512 : 0;
}

std::map<std::string, Segment> FindSegments(const std::string& directory) {
  std::map<std::string, Segment> segments;
  const std::string prefix = fmt::format("{}{}-", layout::kNamePrefix, ::geteuid());
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(directory, failure)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix)) continue;
    const std::size_t dot = name.find('.', prefix.size());
    Segment& segment = segments[name.substr(0, dot)];
    segment.bytes += BytesOnTmpfs(entry.path());
    if (dot != std::string::npos) continue;
    segment.path = entry.path();
    const UniqueFd fd(::open(segment.path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) continue;
    segment.is_dead = LockHolder(fd.get(), layout::kProducerLockByte) == 0;
    segment.reader_pid = LockHolder(fd.get(), layout::kReaderLockByte);
  }
  return segments;
}

}  // namespace

std::vector<Check> CheckStaleSegments(const std::string& directory) {
  std::uint64_t alive_count = 0, alive_bytes = 0, held_count = 0, held_bytes = 0;
  std::uint64_t orphan_bytes = 0;
  int holder = 0;
  std::uint64_t orphan_count = 0;
  for (const auto& [name, segment] : FindSegments(directory)) {
    const bool has_control = !segment.path.empty();
    if (has_control && !segment.is_dead) {
      ++alive_count;
      alive_bytes += segment.bytes;
    } else if (has_control && segment.reader_pid != 0) {
      ++held_count;
      held_bytes += segment.bytes;
      holder = segment.reader_pid;
    } else {
      ++orphan_count;
      orphan_bytes += segment.bytes;
    }
  }
  std::vector<Check> checks;
  checks.push_back({"rings", Level::kOk,
                    fmt::format("{} job process{} alive, {}", alive_count,
                                alive_count == 1 ? "" : "es", numerics::FormatBytes(alive_bytes)),
                    ""});
  if (held_count > 0) {
    checks.push_back({"dead jobs", Level::kOk,
                      fmt::format("{} kept readable by the daemon{}, {}", held_count,
                                  holder > 0 ? fmt::format(" (pid {})", holder) : "",
                                  numerics::FormatBytes(held_bytes)),
                      "cgdebug-cli ps -a"});
  }
  if (orphan_count > 0) {
    checks.push_back({"dead jobs", Level::kWarn,
                      fmt::format("{} left rings that no daemon holds, {}", orphan_count,
                                  numerics::FormatBytes(orphan_bytes)),
                      "cgdebug-cli ps -a   to look at them. They go when a job needs the room; to "
                      "free it now, type: cgdebug-cli ps --prune"});
  }
  return checks;
}

std::vector<Check> CheckMarks(const std::string& directory) {
  const std::pair<const char*, const char*> marks[] = {
      {"daemon", "other programs do not find the daemon"},
      {"reader", "a job that ends before the daemon finds it leaves nothing behind"},
      {"recorder", "a job that starts does not wait for a recording, and may lose snapshots"},
  };
  std::vector<Check> checks;
  for (const auto& [kind, effect] : marks) {
    const std::string path =
        fmt::format("{}/{}{}-{}", directory, layout::kNamePrefix, kind, ::geteuid());
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) continue;
    if (S_ISREG(info.st_mode) && info.st_uid == ::geteuid()) continue;
    const std::string whose = info.st_uid == ::geteuid()
                                  ? "is no file"
                                  : fmt::format("belongs to the user with the id {}", info.st_uid);
    checks.push_back({"marks", Level::kFail, fmt::format("{} {}: {}", path, whose, effect),
                      "sudo rm -r " + path});
  }
  return checks;
}

void NoteMarks(Context& context) {
  for (const Check& check : CheckMarks(layout::kShmDirectory)) {
    context.Note(fmt::format("{}. Type: {}", check.text, check.fix));
  }
}

}  // namespace cgdebug::cli
