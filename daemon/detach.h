// detach.h: leaves the terminal, the job and everything else that started the daemon.
#pragma once

#include <string>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug {

// In the detached process: tells the starter that clients can connect, or why the daemon failed.
// The starter ends when it has read that.
class Starter {
 public:
  Starter() = default;  // no process waits
  explicit Starter(UniqueFd pipe) : pipe_(std::move(pipe)) {}
  void Ready(const std::string& text) { Tell('+', text); }
  void Failed(const std::string& text) { Tell('-', text); }

 private:
  void Tell(char sign, const std::string& text);
  UniqueFd pipe_;
};

struct Detached {
  Starter starter;  // in the daemon
  bool is_starter = false;
  bool ok = false;  // in the starter: whether the daemon came up
  std::string text;
};

// Forks twice and returns in two processes: in the starter, when the daemon has reported; and in
// the daemon, with its own session, working directory "/", umask 077, 0 to 2 on /dev/null, no other
// descriptor, no signal blocked or ignored.
// Requires: one thread.
Result<Detached> Detach();

// Raises the process's soft limits to the hard ones: a daemon maps the rings and writes the
// recordings of many jobs.
void RaiseLimits();
// Gives up what a daemon inherits from the job that started it: the cores that the rank is bound
// to, and its nice value.
void LeaveJobsShare();

}  // namespace cgdebug
