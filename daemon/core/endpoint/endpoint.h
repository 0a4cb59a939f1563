// endpoint.h: how clients and the daemon connect, and who may.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug::wire {

// Changes if an old client would misread a new daemon or the reverse; then both refuse, and their
// messages name both numbers. New fields and messages do not change it.
inline constexpr std::uint32_t kProtocol = 3;

struct Peer {
  pid_t pid = 0;  // in this process's PID namespace; 0 if it cannot be seen from here
  uid_t uid = 0;
};

// Who is at the other end of a connected Unix socket.
// Fails: the peer runs as another user. Both ends check: a daemon shows tensors only to their user,
//        and a client must not take a stranger for its daemon.
Result<Peer> CheckPeer(int fd);

// Connects to the daemon that listens on `socket_path` and checks that it is the user's own.
// Returns an empty descriptor if nobody listens there.
// Fails: permission, another user's daemon, or a daemon that accepts nobody within `timeout`.
Result<UniqueFd> TryConnect(const std::string& socket_path,
                            std::chrono::milliseconds timeout = std::chrono::seconds(2));

// The message for when nobody listens.
Error NoDaemon(const std::string& socket_path);
// The message for when the daemon looks for jobs in another /dev/shm than that of this process.
Error OtherContainer(const std::string& socket_path, pid_t pid);

// Where a daemon that was started in the background logs: "<socket without .sock>.log".
std::string LogPath(const std::string& socket_path);

}  // namespace cgdebug::wire
