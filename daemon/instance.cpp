#include "daemon/instance.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace cgdebug {
namespace {

constexpr int kBacklog = 64;

Result<UniqueFd> Listen(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return Error{"the socket path is too long: " + path};
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat info = {};
  if (lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return Error{path + " exists and is not a socket. Type: rm " + path +
                 "   or give another path with --socket"};
  }
  unlink(path.c_str());  // left by a dead daemon: a live one would hold the lock
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoError("cannot create a socket");
  const mode_t umask_before = umask(0177);
  const int bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int bind_error = errno;
  umask(umask_before);
  if (bound != 0) return ErrnoError("cannot bind " + path, bind_error);
  if (listen(fd.get(), kBacklog) != 0) return ErrnoError("cannot listen on " + path);
  return fd;
}

}  // namespace

Result<std::optional<Instance>> Instance::Claim(const std::string& socket_path) {
  const std::string lock_path = socket_path + ".lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return ErrnoError("cannot open the lock file " + lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return std::optional<Instance>();
    return ErrnoError("cannot lock " + lock_path);
  }
  Result<UniqueFd> listener = Listen(socket_path);
  if (!listener.ok()) return std::move(listener).error();
  return std::optional<Instance>(Instance(std::move(lock), *std::move(listener), socket_path));
}

Instance::~Instance() {
  if (lock_) unlink(socket_path_.c_str());
}

}  // namespace cgdebug
