#include "daemon/core/endpoint/endpoint.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace cgdebug::wire {

Result<Peer> CheckPeer(int fd) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return ErrnoError("cannot ask who is at the other end of the socket");
  }
  if (credentials.uid != ::geteuid()) {
    return Error{"the other end of the socket runs as uid " + std::to_string(credentials.uid) +
                 ", this process as uid " + std::to_string(::geteuid()) +
                 ": a daemon serves its own user only"};
  }
  return Peer{credentials.pid, credentials.uid};
}

Result<UniqueFd> TryConnect(const std::string& socket_path, std::chrono::milliseconds timeout) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return Error{"the socket path is too long: " + socket_path};
  }
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());

  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("cannot create a socket");
  // connect() to a Unix socket waits while the listener's backlog is full.
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timeval limit{
      seconds.count(),
      std::chrono::duration_cast<std::chrono::microseconds>(timeout - seconds).count()};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));

  int result;
  do {
    result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    const Result<Peer> peer = CheckPeer(fd.get());
    if (!peer.ok()) return Error{peer.error().message + ". Socket: " + socket_path};
    return fd;
  }
  if (errno == ENOENT || errno == ECONNREFUSED) return UniqueFd();
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    return Error{"the daemon on " + socket_path +
                 " accepts no connection. Type: cgdebug-cli daemon logs"};
  }
  return ErrnoError("cannot connect to " + socket_path);
}

Error NoDaemon(const std::string& socket_path) {
  return Error{"no daemon is running (nobody listens on " + socket_path +
               "). Type: cgdebug-cli daemon start"};
}

Error OtherContainer(const std::string& socket_path, pid_t pid) {
  return Error{
      "the daemon at " + socket_path + " (pid " + std::to_string(pid) +
      ") belongs to another container: its /dev/shm is not the one that jobs write to "
      "here. Type: export CGDEBUG_SOCKET=$(mktemp -d)/daemon.sock   and run this again; if it is "
      "yours, end it: cgdebug-cli daemon stop"};
}

std::string LogPath(const std::string& socket_path) {
  constexpr std::string_view kSuffix = ".sock";
  const bool has_suffix = socket_path.ends_with(kSuffix);
  return socket_path.substr(0, socket_path.size() - (has_suffix ? kSuffix.size() : 0)) + ".log";
}

}  // namespace cgdebug::wire
