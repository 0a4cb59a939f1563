// job.h: a child process that gets our signals and gives us its exit code.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "daemon/core/base/result.h"

namespace cgdebug::cli {

// Blocks the signals that Job::Wait takes. Make one before any other thread starts: threads inherit
// the mask, so that the signals wait for Wait.
class JobSignals {
 public:
  JobSignals();
  ~JobSignals();
  JobSignals(const JobSignals&) = delete;
  JobSignals& operator=(const JobSignals&) = delete;

  const sigset_t& blocked() const { return blocked_; }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t blocked_;
  sigset_t before_;
};

class Job {
 public:
  // Starts `command` with our environment and `environment` on top of it; the terminal, working
  // directory and process group stay ours.
  // Fails: it cannot be executed; exit_code() is then what a shell would give, 127 or 126.
  Result<void> Start(const std::vector<std::string>& command,
                     const std::vector<std::pair<std::string, std::string>>& environment,
                     const JobSignals& signals);

  // Forwards signals until the job has ended; leaves none pending that came before its end.
  void Wait(const JobSignals& signals);

  // After Wait: the job's, 128+n for signal n.
  int exit_code() const { return exit_code_; }
  int signal() const { return signal_; }  // 0 when it exited by itself
  pid_t pid() const { return pid_; }

 private:
  bool Reap();
  void Forward(const siginfo_t& info) const;

  pid_t pid_ = 0;
  int exit_code_ = 0;
  int signal_ = 0;
};

}  // namespace cgdebug::cli
