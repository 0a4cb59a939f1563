// runtime_dir.h: where the daemon's socket lies.
//
//   1. the path a flag gave                      (--socket)
//   2. $CGDEBUG_SOCKET
//   3. where the user's daemon listens           (daemon_mark.h; clients only)
//   4. $XDG_RUNTIME_DIR/cgdebug/daemon.sock      when that directory is ours alone to write
//   5. /tmp/cgdebug-<uid>/daemon.sock
//
// Anybody who may write to a socket's directory can pose as the daemon. So the directory of 4 and 5
// must be a real directory (not a symlink), ours, and not writable by group or others; the daemon
// and its clients refuse anything else. The user chose a path of 1 or 2: its directory is created
// if it is missing, and otherwise not checked.
#pragma once

#include <sys/types.h>

#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug {

// What the decision depends on; tests make their own.
struct RuntimeEnvironment {
  std::string socket;           // $CGDEBUG_SOCKET, empty when unset
  std::string xdg_runtime_dir;  // $XDG_RUNTIME_DIR, empty when unset
  std::string tmp_dir = "/tmp";
  std::string mark_dir;  // where the daemon's mark lies; empty: none is looked for
  uid_t uid = 0;

  // For a client.
  static RuntimeEnvironment OfThisProcess();
  // For a daemon: where it would listen itself.
  static RuntimeEnvironment OfThisDaemon();
};

// Whether the user chose the socket (1 or 2). A daemon on it serves only jobs and clients that name
// it.
bool IsChosen(const RuntimeEnvironment& environment, const std::string& flag_path);

// The socket's absolute path, for a client. Creates nothing; the directory may not exist yet.
// Fails: a directory that is refused (see above), or a path too long for a Unix socket.
Result<std::string> SocketPath(const RuntimeEnvironment& environment,
                               const std::string& flag_path = "");

// The socket's path for the daemon. Creates the directory with mode 0700 if there is none.
Result<std::string> PrepareSocketPath(const RuntimeEnvironment& environment,
                                      const std::string& flag_path = "");

}  // namespace cgdebug
