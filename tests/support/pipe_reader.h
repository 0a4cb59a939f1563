// pipe_reader.h: the reading end of a pipe that another process writes to.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "daemon/core/base/unique_fd.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {

class PipeReader {
 public:
  PipeReader() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
    fcntl(read_end_.get(), F_SETFL, O_NONBLOCK);
  }

  int write_fd() const { return write_end_.get(); }
  void CloseWriteEnd() { write_end_.reset(); }

  // Everything that has come so far.
  const std::string& text() {
    char buffer[4096];
    ssize_t bytes = 0;
    while ((bytes = read(read_end_.get(), buffer, sizeof(buffer))) > 0) {
      text_.append(buffer, static_cast<std::size_t>(bytes));
    }
    ended_ = ended_ || bytes == 0;
    return text_;
  }
  // Every writer has closed it.
  bool ended() {
    text();
    return ended_;
  }
  bool WaitFor(const std::string& part) {
    return WaitUntil([&] { return text().find(part) != std::string::npos; });
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
  std::string text_;
  bool ended_ = false;
};

inline std::size_t CountOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

}  // namespace cgdebug::test
