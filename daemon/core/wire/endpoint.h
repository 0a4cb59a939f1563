// endpoint.h: where clients and the daemon meet, and who may.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug::wire {

// Changes when an old client would misread a new daemon or the other way round; then both refuse,
// and name both numbers. New fields and messages do not change it.
inline constexpr std::uint32_t kProtocol = 2;

inline constexpr const char* kDaemonName = "cgdebug-daemon";

struct Peer {
  pid_t pid = 0;  // in this process's PID namespace, 0 when it is in none that is visible
  uid_t uid = 0;
};

// Who is at the other end of a connected Unix socket.
// Fails: it runs as another user than this process. Both ends ask: a daemon shows a user's tensors
//        to that user only, and a client takes no stranger for its daemon.
Result<Peer> CheckPeer(int fd);

// Connects to the daemon that listens on `socket_path`; checks that it is the user's own.
// An empty descriptor: nobody listens there.
// Fails: permission, another user's daemon, a daemon that accepts nobody for `timeout`.
Result<UniqueFd> TryConnect(const std::string& socket_path,
                            std::chrono::milliseconds timeout = std::chrono::seconds(2));

// What to say when nobody listens.
Error NoDaemon(const std::string& socket_path);

// Where a daemon that was started in the background writes: "<socket without .sock>.log".
std::string LogPath(const std::string& socket_path);

}  // namespace cgdebug::wire
