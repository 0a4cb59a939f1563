// daemon_start.h: how probes, the command line and Python start cgdebug-daemon.
//
// The daemon detaches itself (daemon/detach.h). The process that is started here ends as soon as
// the daemon can be talked to, or says why there is none. So a start is a spawn and a wait, and
// needs no code of the daemon.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace cgdebug::launch {

inline constexpr const char* kDaemonName = "cgdebug-daemon";

// $CGDEBUG_DAEMON, else cgdebug-daemon
//   in the environment or build tree that the shared library with this code lies in,
//   beside this process's executable,
//   on PATH, in absolute folders only: a relative one may be anybody's.
// Empty when it is in none of them.
std::string FindDaemon();

// Runs `program --spawned ARGUMENTS...` and waits until it says that a daemon is ready, which may
// be one that ran already. Returns what went wrong in words that begin with the program's path and
// end with what the program wrote; empty when nothing did. At the deadline the program is killed.
//
// Thread: any. Spawns with posix_spawn, not fork: no handler of the job runs and no page of it is
//         copied.
std::string StartDaemon(const std::string& program, const std::vector<std::string>& arguments,
                        std::chrono::milliseconds timeout);

}  // namespace cgdebug::launch
