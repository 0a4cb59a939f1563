// autostart.h: connects a client to the daemon, and starts one if needed.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug::wire {

struct AutostartOptions {
  std::string executable;  // empty: FindDaemon()
  std::chrono::milliseconds timeout = std::chrono::seconds(5);
  std::vector<std::string> arguments;  // more options of the daemon
  // Set when nobody chose the socket: the daemon finds its place by itself, and this tells where
  // the user's daemon listens by now, which may be elsewhere.
  std::function<std::string()> find_socket;
};

// As launch::FindDaemon. Fails: it is nowhere; the message names the places.
Result<std::string> FindDaemon();

// Connects to the daemon on `socket_path` and starts it first when nobody listens there, as
// `cgdebug-daemon --spawned --socket <path>` (launch::StartDaemon). Returns when the socket
// accepts.
// `*started` tells whether this call started one.
//
// Requires: the directory of `socket_path` exists (PrepareSocketPath).
//
// Two clients may do this at once: each starts a process. The process that does not get the
// daemon's lock exits with 0, and both clients connect to the other.
// Fails: no executable, it exits with an error, nobody accepts before the deadline; the message has
//        what the daemon said and the path of its log.
Result<UniqueFd> ConnectOrStart(const std::string& socket_path, const AutostartOptions& options,
                                bool* started);

}  // namespace cgdebug::wire
