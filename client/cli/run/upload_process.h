// upload_process.h: the Python beside this program that copies a recording behind a URL
// (python/cgdebug/_upload.py).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/core/base/result.h"

namespace cgdebug::cli {

// The program and its arguments. Fails: no Python package is beside this program.
Result<std::vector<std::string>> UploadCommand(const std::string& folder, const std::string& url,
                                               bool follow);

// In a session of its own: Ctrl-C ends the job and its recording, and what is then closed has yet
// to be copied. It goes on when this process has ended.
class UploadProcess {
 public:
  // Copies what is written into `recording` until that is closed. What it says goes to stderr, or
  // if `log` is not empty, into that file.
  Result<void> Start(const std::string& recording, const std::string& url, const std::string& log);
  // Waits until everything that was recorded is there, and says whether it is. If the recording has
  // no segment now, none is expected. Requires: nobody writes to the recording any more.
  bool Wait();

  bool is_started() const { return pid_ > 0; }

 private:
  pid_t pid_ = -1;
  bool has_failed_ = false;  // to start
  std::string recording_;
};

}  // namespace cgdebug::cli
