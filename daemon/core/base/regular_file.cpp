#include "daemon/core/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace cgdebug {

Result<UniqueFd> OpenRegularFile(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600));
  const bool may_be_other = errno == ENXIO || errno == EISDIR;  // a socket, a directory
  if (!fd && !may_be_other) return ErrnoError("cannot open " + path);
  struct stat status = {};
  if (fd && ::fstat(fd.get(), &status) != 0) return ErrnoError("cannot look at " + path);
  if (!S_ISREG(status.st_mode)) return Error{path + " is not a regular file"};
  return fd;
}

std::size_t ReadAt(int fd, std::uint64_t offset, std::span<std::byte> buffer) {
  std::size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t got =
        pread(fd, buffer.data() + done, buffer.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace cgdebug
