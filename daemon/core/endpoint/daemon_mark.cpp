#include "daemon/core/endpoint/daemon_mark.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace cgdebug {
namespace {

constexpr int kAttemptsToClaim = 8;
constexpr std::size_t kMaxPathBytes = 4096;

std::string MarkPath(const std::string& directory) {
  return directory + "/cgdebug-daemon-" + std::to_string(geteuid());
}

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Whether the file is ours, and not something put there to mislead us.
bool IsOurs(int fd, struct stat* info) {
  return fstat(fd, info) == 0 && S_ISREG(info->st_mode) && info->st_uid == geteuid();
}

}  // namespace

std::uint64_t DeviceOf(const std::string& directory) {
  struct stat info = {};
  return stat(directory.c_str(), &info) == 0 ? info.st_dev : 0;
}

std::string MarkedSocket(const std::string& directory) {
  const UniqueFd fd(open(MarkPath(directory).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info = {};
  struct flock lock = WholeFile();
  if (!fd || !IsOurs(fd.get(), &info) || fcntl(fd.get(), F_GETLK, &lock) != 0 ||
      lock.l_type == F_UNLCK) {
    return {};
  }
  std::string path(kMaxPathBytes, '\0');
  const ssize_t bytes = pread(fd.get(), path.data(), path.size(), 0);
  path.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return path.starts_with('/') ? path : std::string();
}

Result<std::optional<DaemonMark>> DaemonMark::Claim(const std::string& directory,
                                                    const std::string& socket_path) {
  const std::string path = MarkPath(directory);
  // A daemon that gives the mark back removes the file, and a lock on a removed file says nothing.
  for (int attempt = 0; attempt < kAttemptsToClaim; ++attempt) {
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return ErrnoError("cannot open " + path);
    struct stat info = {};
    if (!IsOurs(fd.get(), &info)) return Error{path + " is another user's file"};
    struct flock lock = WholeFile();
    if (fcntl(fd.get(), F_SETLK, &lock) != 0) {
      if (errno == EAGAIN || errno == EACCES) return std::optional<DaemonMark>();
      return ErrnoError("cannot lock " + path);
    }
    if (fstat(fd.get(), &info) != 0 || info.st_nlink == 0) continue;
    if (ftruncate(fd.get(), 0) != 0 || pwrite(fd.get(), socket_path.data(), socket_path.size(),
                                              0) != static_cast<ssize_t>(socket_path.size())) {
      unlink(path.c_str());
      return ErrnoError("cannot write " + path);
    }
    return std::optional<DaemonMark>(DaemonMark(std::move(fd), path));
  }
  return Error{path + " is removed again and again"};
}

DaemonMark::~DaemonMark() {
  if (fd_) unlink(path_.c_str());
}

}  // namespace cgdebug
