// autostart.h: a client that needs a daemon gets one.
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

// $CGDEBUG_DAEMON, else cgdebug-daemon beside this process's own executable, else on PATH.
// Fails: none of them; the message names the places.
Result<std::string> FindDaemon();

// Connects to the daemon on `socket_path` and starts it first when nobody listens there: detached
// (own session, working directory "/", no inherited descriptor but its log), as
// `cgdebug-daemon --spawned --socket <path>`. Returns when the socket accepts.
// `*started` tells whether this call started one.
//
// Requires: the directory of `socket_path` exists (PrepareSocketPath).
//
// Two clients may do this at once: each starts a process, the one that does not get the daemon's
// lock file exits 0, and both clients connect to the other one.
// Fails: no executable, it exits with an error, nobody accepts before the deadline; the message has
//        the end of the daemon's log and its path.
Result<UniqueFd> ConnectOrStart(const std::string& socket_path, const AutostartOptions& options,
                                bool* started);

}  // namespace cgdebug::wire
