#include "libprobe/ring/segment/process_origin.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace cgdebug::ring {

// Fields are counted from behind the command, which may contain spaces.
std::uint64_t StartTicks(pid_t pid) {
  char text[1024] = {};
  const int fd = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t bytes = read(fd, text, sizeof(text) - 1);
  close(fd);
  const char* cursor = bytes > 0 ? std::strrchr(text, ')') : nullptr;
  for (int field = 2; cursor != nullptr && field < 22; ++field) {
    cursor = std::strchr(cursor + 1, ' ');
  }
  return cursor == nullptr ? 0 : std::strtoull(cursor, nullptr, 10);
}

std::uint64_t OwnPidNamespace() {
  struct stat info = {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace cgdebug::ring
