// daemon_mark.h: the one daemon per user and /dev/shm, announced where the segments are.
//
// /dev/shm/cgdebug-daemon-<uid> holds the path of the daemon's socket. The daemon keeps a record
// lock on the file, which the kernel drops when the daemon dies. So a login session, a cron job and
// a container that share /dev/shm share the daemon, whatever their XDG_RUNTIME_DIR says. A daemon
// on a socket that the user chose (--socket, CGDEBUG_SOCKET) has no mark.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug {

// Where the user's daemon listens; empty if no daemon holds the mark in `directory`.
// Requires: this process does not hold the mark (closing a second descriptor would drop its lock).
std::string MarkedSocket(const std::string& directory);

// st_dev of `directory`, 0 if it cannot be looked at. Two processes whose numbers of /dev/shm
// differ are in containers of their own and do not see each other's segments.
std::uint64_t DeviceOf(const std::string& directory);

// Lifetime: the destructor gives the mark back and removes the file.
class DaemonMark {
 public:
  // nullopt if another daemon holds it.
  // Fails: the file cannot be made, or belongs to another user.
  static Result<std::optional<DaemonMark>> Claim(const std::string& directory,
                                                 const std::string& socket_path);

  DaemonMark(DaemonMark&&) = default;
  DaemonMark& operator=(DaemonMark&&) = delete;
  ~DaemonMark();

 private:
  DaemonMark(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
};

}  // namespace cgdebug
