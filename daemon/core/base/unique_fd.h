// unique_fd.h: owns a file descriptor.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cgdebug {

// Thread: like an int. Lifetime: closes on destruction; empty after a move.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

  // Gives the descriptor to the caller.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

  // Keeps errno, so that an error path may close before it reports. Does not retry on EINTR: Linux
  // has freed the number by then.
  void reset(int fd = -1) noexcept {
    const int old = std::exchange(fd_, fd);
    if (old < 0) return;
    const int saved_errno = errno;
    ::close(old);
    errno = saved_errno;
  }

 private:
  int fd_ = -1;
};

}  // namespace cgdebug
