#include "libprobe/ring/record_lock.h"

#include <fcntl.h>
#include <unistd.h>

namespace cgdebug::ring {
namespace {

struct flock Lock(short type, std::int64_t byte) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

}  // namespace

bool TryLockByte(int fd, std::int64_t byte) noexcept {
  struct flock lock = Lock(F_WRLCK, byte);
  return fcntl(fd, F_SETLK, &lock) == 0;
}

bool TryShareByte(int fd, std::int64_t byte) noexcept {
  struct flock lock = Lock(F_RDLCK, byte);
  return fcntl(fd, F_SETLK, &lock) == 0;
}

bool LockedByOther(int fd, std::int64_t byte) noexcept {
  struct flock lock = Lock(F_WRLCK, byte);
  return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

pid_t LockHolder(int fd, std::int64_t byte) noexcept {
  struct flock lock = Lock(F_WRLCK, byte);
  if (fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
  return lock.l_pid > 0 ? lock.l_pid : 0;
}

}  // namespace cgdebug::ring
