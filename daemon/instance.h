// instance.h: one daemon per user and socket.
#pragma once

#include <optional>
#include <string>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug {

// Holds "<socket>.lock" and the listening socket. Whoever gets the lock may remove a socket that a
// dead daemon left; a process that does not get it changes nothing.
//
// Lifetime: removes the socket on destruction, before the lock is given back. The lock file stays:
//           a lock on a removed file would not exclude anything.
class Instance {
 public:
  // nullopt: another daemon has the lock.
  // Fails: the lock or the socket cannot be made.
  static Result<std::optional<Instance>> Claim(const std::string& socket_path);

  Instance(Instance&&) = default;
  Instance& operator=(Instance&&) = delete;
  ~Instance();

  // Once: the server closes it.
  UniqueFd TakeListener() { return std::move(listener_); }

 private:
  Instance(UniqueFd lock, UniqueFd listener, std::string socket_path)
      : lock_(std::move(lock)),
        listener_(std::move(listener)),
        socket_path_(std::move(socket_path)) {}

  UniqueFd lock_;
  UniqueFd listener_;
  std::string socket_path_;
};

}  // namespace cgdebug
