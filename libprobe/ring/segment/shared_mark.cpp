#include "libprobe/ring/segment/shared_mark.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>
#include <string>

#include "libprobe/ring/record_lock.h"
#include "libprobe/ring/segment/shared_file.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {
namespace {

constexpr int kOpenAttempts = 8;

std::string MarkPath(MarkKind kind) {
  const char* name = kind == MarkKind::kReader ? "reader-" : "recorder-";
  return ShmPath(layout::kNamePrefix + std::string(name) + std::to_string(geteuid()));
}

// Whether the file belongs to this user and is what Hold() makes.
bool IsOurs(int fd, struct stat* info) noexcept {
  return fstat(fd, info) == 0 && info->st_uid == geteuid() && S_ISREG(info->st_mode);
}

}  // namespace

bool SharedMark::Hold() noexcept try {
  if (fd_ >= 0) return true;
  const std::string path = MarkPath(kind_);
  // Another daemon may remove the file between the two calls. A lock on a removed file says
  // nothing.
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat info = {};
    if (fd_ >= 0 && IsOurs(fd_, &info) && TryShareByte(fd_, 0)) {
      if (fstat(fd_, &info) == 0 && info.st_nlink > 0) return true;
    }
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

void SharedMark::Drop() noexcept try {
  if (fd_ < 0) return;
  // If the shared lock becomes exclusive, no other daemon relies on the file.
  if (TryLockByte(fd_, 0)) unlink(MarkPath(kind_).c_str());
  close(fd_);
  fd_ = -1;
} catch (const std::bad_alloc&) {
  close(fd_);
  fd_ = -1;
}

bool IsMarked(MarkKind kind) noexcept try {
  const int fd = open(MarkPath(kind).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  struct stat info = {};
  const bool is_marked = IsOurs(fd, &info) && LockedByOther(fd, 0);
  close(fd);
  return is_marked;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace cgdebug::ring
