// job_terminal.h: the terminal of a traced job, if the daemon may write to it.
#pragma once

#include <string>
#include <string_view>

#include "daemon/core/base/unique_fd.h"
#include "daemon/model/identity.h"

namespace cgdebug::sinks {

// The job's stderr: a terminal, a pipe or a file. A file only if both write behind each other: if
// the job appends to it (`2>> log`, nohup), or its own descriptor can be had, offset and all. Not
// the stderr of a process in another PID namespace, where the pid means another process.
//
// Lifetime: holds the job's stderr open, so the reader of that pipe sees its end only after this
//           is closed too.
class JobTerminal {
 public:
  JobTerminal() = default;
  // Closed when the job is gone or has no such terminal.
  explicit JobTerminal(const pipeline::SessionIdentity& job);

  // Never blocks. False if no byte could be written: the terminal is full, stopped or gone.
  bool Write(std::string_view text);

 private:
  bool WriteRest();

  UniqueFd fd_;
  bool is_ascii_ = false;  // the job's locale
  std::string rest_;       // of a text that went out in part
};

}  // namespace cgdebug::sinks
