#include "daemon/sinks/job_terminal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "daemon/core/numerics/ascii.h"
#include "daemon/record/job_process.h"

namespace cgdebug::sinks {
namespace {

// The locale that the process began with; reads at most kMaxBytes of its environment.
numerics::LocaleVariables LocaleOf(std::int32_t pid) {
  constexpr std::size_t kMaxBytes = 1u << 20;
  const std::string path = "/proc/" + std::to_string(pid) + "/environ";
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string environment(1, '\0');
  char buffer[4096];
  ssize_t bytes = 0;
  while (fd && environment.size() < kMaxBytes &&
         (bytes = read(fd.get(), buffer, sizeof(buffer))) > 0) {
    environment.append(buffer, static_cast<std::size_t>(bytes));
  }
  const auto value = [&](const std::string& name) {
    const std::string before = '\0' + name + '=';
    const std::size_t at = environment.find(before);
    return at == std::string::npos ? "" : std::string(environment.c_str() + at + before.size());
  };
  return {value("LC_ALL"), value("LC_CTYPE"), value("LANG")};
}

bool IsPipe(const struct stat& info) { return S_ISFIFO(info.st_mode); }

// Whether every write of the job to its stderr goes to the end of the file.
bool Appends(std::int32_t pid) {
  std::ifstream info("/proc/" + std::to_string(pid) + "/fdinfo/2");
  for (std::string word; info >> word;) {
    std::string flags;
    if (word == "flags:" && info >> flags) {
      return (std::strtoul(flags.c_str(), nullptr, 8) & O_APPEND) != 0;
    }
  }
  return false;
}

// The file that is the job's stderr, so that neither of the two writes over what the other wrote.
// Empty: that cannot be had.
UniqueFd OpenFile(std::int32_t pid, const std::string& path) {
  if (Appends(pid)) return UniqueFd(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  // Its own descriptor, with the offset that it writes at: Linux 5.6, and only for whoever may
  // trace the job.
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return {};
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), STDERR_FILENO, 0)));
}

}  // namespace

JobTerminal::JobTerminal(const pipeline::SessionIdentity& job) {
  if (!pipeline::IsReachable(job)) return;
  const std::string path = "/proc/" + std::to_string(job.pid) + "/fd/2";
  struct stat before = {};
  if (stat(path.c_str(), &before) != 0) return;
  const bool is_file = S_ISREG(before.st_mode);
  if (!is_file && !IsPipe(before) && !S_ISCHR(before.st_mode)) return;
  UniqueFd fd =
      is_file
          ? OpenFile(job.pid, path)
          : UniqueFd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_APPEND | O_CLOEXEC));
  struct stat opened = {};
  if (!fd || fstat(fd.get(), &opened) != 0) return;
  if (is_file && (opened.st_dev != before.st_dev || opened.st_ino != before.st_ino)) return;
  if (!is_file && !IsPipe(opened) && isatty(fd.get()) == 0) return;
  is_ascii_ = numerics::IsAscii(LocaleOf(job.pid));
  if (!pipeline::IsReachable(job)) return;  // it ended and its pid was reused in between
  fd_ = std::move(fd);
}

bool JobTerminal::WriteRest() {
  while (!rest_.empty()) {
    const ssize_t written = write(fd_.get(), rest_.data(), rest_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      fd_.reset();
      rest_.clear();
    }
    if (written <= 0) return false;
    rest_.erase(0, static_cast<std::size_t>(written));
  }
  return static_cast<bool>(fd_);
}

bool JobTerminal::Write(std::string_view text) {
  if (!fd_ || !WriteRest()) return false;
  rest_ = is_ascii_ ? numerics::ToAscii(text) : std::string(text);
  const std::size_t bytes = rest_.size();
  WriteRest();
  if (fd_ && rest_.size() < bytes) return true;
  rest_.clear();
  return false;
}

}  // namespace cgdebug::sinks
