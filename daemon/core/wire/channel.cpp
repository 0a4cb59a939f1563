#include "daemon/core/wire/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>

namespace cgdebug::wire {
namespace {

constexpr const char* kBroken = "the connection to the daemon broke";

// Milliseconds for poll(), rounded up so that a wait never spins through its last millisecond.
int PollTimeout(Deadline deadline) {
  if (deadline == kNoDeadline) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<long long>(left.count(), 0, INT_MAX));
}

enum class Ready { kSocket, kStop, kTimeout, kError };

Ready Wait(int fd, short events, Deadline deadline, int stop_fd) {
  while (true) {
    pollfd waits[2] = {{fd, events, 0}, {stop_fd, POLLIN, 0}};
    const int timeout_ms = PollTimeout(deadline);
    const int count = ::poll(waits, stop_fd < 0 ? 1 : 2, timeout_ms);
    if (count < 0 && errno != EINTR) return Ready::kError;
    if (count > 0 && stop_fd >= 0 && waits[1].revents != 0) return Ready::kStop;
    if (count > 0) return Ready::kSocket;
    if (count == 0 && PollTimeout(deadline) == 0) return Ready::kTimeout;
  }
}

Error BrokenWrite() {
  return Error{ErrnoError(kBroken).message + ". Type: cgdebug-cli daemon logs"};
}

}  // namespace

Channel::Channel(UniqueFd socket) : socket_(std::move(socket)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
}

Result<void> Channel::Write(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return BrokenWrite();
    const Ready ready = Wait(socket_.get(), POLLOUT, deadline, -1);
    if (ready == Ready::kError) return BrokenWrite();
    if (ready == Ready::kTimeout) {
      return Error{"the daemon does not take requests any more. Type: cgdebug-cli daemon stop"};
    }
  }
  return {};
}

ReadStatus Channel::Fill(char* out, std::size_t wanted_bytes, std::size_t* filled_bytes,
                         Deadline deadline, int stop_fd, std::string* error) {
  while (*filled_bytes < wanted_bytes) {
    switch (Wait(socket_.get(), POLLIN, deadline, stop_fd)) {
      case Ready::kStop:
        return ReadStatus::kStopped;
      case Ready::kTimeout:
        return ReadStatus::kTimeout;
      case Ready::kError:
        *error = ErrnoError(kBroken).message;
        return ReadStatus::kError;
      case Ready::kSocket:
        break;
    }
    const ssize_t got = ::recv(socket_.get(), out + *filled_bytes, wanted_bytes - *filled_bytes, 0);
    if (got == 0) return ReadStatus::kClosed;
    if (got > 0) {
      *filled_bytes += static_cast<std::size_t>(got);
    } else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
      *error = ErrnoError(kBroken).message;
      return ReadStatus::kError;
    }
  }
  return ReadStatus::kFrame;
}

ReadStatus Channel::Read(Frame* frame, Deadline deadline, int stop_fd, std::string* error) {
  const auto closed_inside_a_frame = [&] {
    *error = std::string(kBroken) + ": the daemon ended in the middle of an answer";
    return ReadStatus::kError;
  };
  if (header_filled_bytes_ < kHeaderBytes) {
    const ReadStatus status = Fill(reinterpret_cast<char*>(header_bytes_.data()), kHeaderBytes,
                                   &header_filled_bytes_, deadline, stop_fd, error);
    if (status == ReadStatus::kClosed && header_filled_bytes_ > 0) return closed_inside_a_frame();
    if (status != ReadStatus::kFrame) return status;
    const Result<FrameHeader> header = ParseHeader(header_bytes_);
    if (!header.ok()) {
      *error = header.error().message;
      header_filled_bytes_ = 0;
      return ReadStatus::kError;
    }
    partial_.header = *header;
    partial_.body.resize(header->body_bytes);
    body_filled_bytes_ = 0;
  }
  const ReadStatus status = Fill(partial_.body.data(), partial_.body.size(), &body_filled_bytes_,
                                 deadline, stop_fd, error);
  if (status == ReadStatus::kClosed) return closed_inside_a_frame();
  if (status != ReadStatus::kFrame) return status;
  *frame = std::move(partial_);
  partial_ = Frame{};
  header_filled_bytes_ = 0;
  return ReadStatus::kFrame;
}

}  // namespace cgdebug::wire
