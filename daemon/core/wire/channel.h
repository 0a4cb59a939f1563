// channel.h: frames over a connected socket, synchronously, for clients.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/wire/frame.h"

namespace cgdebug::wire {

using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kNoDeadline = Deadline::max();

enum class ReadStatus {
  kFrame,
  kClosed,   // the other end closed between two frames
  kTimeout,  // the deadline passed; the next Read continues where this one stopped
  kStopped,  // `stop_fd` became readable, likewise
  kError,    // *error says what; the connection is unusable
};

// Thread: one at a time.
class Channel {
 public:
  // Makes the socket non-blocking: every wait is a poll() with a deadline.
  explicit Channel(UniqueFd socket);

  Result<void> Write(std::string_view bytes, Deadline deadline);

  // `stop_fd`, unless it is -1, ends the wait when it becomes readable (it is not read). A signal
  // handler can stop a stream by writing to it.
  ReadStatus Read(Frame* frame, Deadline deadline, int stop_fd, std::string* error);

  int fd() const { return socket_.get(); }

 private:
  ReadStatus Fill(char* out, std::size_t wanted_bytes, std::size_t* filled_bytes, Deadline deadline,
                  int stop_fd, std::string* error);

  UniqueFd socket_;
  std::array<std::byte, kHeaderBytes> header_bytes_{};
  std::size_t header_filled_bytes_ = 0;
  std::size_t body_filled_bytes_ = 0;
  Frame partial_;
};

}  // namespace cgdebug::wire
