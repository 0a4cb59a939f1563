#include "client/cli/run/job.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "client/cli/remote/passwords.h"

namespace cgdebug::cli {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;

std::vector<std::string> Merge(
    const std::vector<std::pair<std::string, std::string>>& environment) {
  std::vector<std::string> merged;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool is_replaced =
        std::any_of(environment.begin(), environment.end(), [&](const auto& entry) {
          return text.starts_with(entry.first) && text.substr(entry.first.size()).starts_with("=");
        });
    if (!is_replaced) merged.emplace_back(text);
  }
  for (const auto& [name, value] : environment) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> pointers;
  for (std::string& text : *strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

JobSignals::JobSignals() {
  ::sigemptyset(&blocked_);
  ::sigaddset(&blocked_, SIGCHLD);
  for (const int signal : kForwarded) ::sigaddset(&blocked_, signal);
  ::sigprocmask(SIG_BLOCK, &blocked_, &before_);
}

JobSignals::~JobSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

Result<void> Job::Start(const std::vector<std::string>& command,
                        const std::vector<std::pair<std::string, std::string>>& environment,
                        const JobSignals& signals) {
  std::vector<std::string> arguments;
  for (const std::string& word : command) arguments.push_back(WithPassword(word));
  std::vector<std::string> variables = Merge(environment);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &signals.before());
  // We ignore SIGPIPE; the job is not to inherit that.
  sigset_t defaults;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGPIPE);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int failure = ::posix_spawnp(&pid_, arguments[0].c_str(), nullptr, &attributes,
                                     Pointers(&arguments).data(), Pointers(&variables).data());
  ::posix_spawnattr_destroy(&attributes);
  if (failure == 0) return {};
  exit_code_ = failure == ENOENT ? kNotFound : kNotExecutable;
  return ErrnoError("cannot run '" + command[0] + "'", failure);
}

bool Job::Reap() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  exit_code_ = signal_ != 0 ? 128 + signal_ : WEXITSTATUS(status);
  return true;
}

void Job::Forward(const siginfo_t& info) const {
  // The terminal has sent Ctrl-C to the whole process group: the job has it already.
  const bool from_terminal = info.si_code == SI_KERNEL;
  if (!from_terminal) ::kill(pid_, info.si_signo);
}

void Job::Wait(const JobSignals& signals) {
  while (!Reap()) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals.blocked(), &info);
    if (signal > 0 && signal != SIGCHLD) Forward(info);
  }
  const timespec now{};
  while (::sigtimedwait(&signals.blocked(), nullptr, &now) > 0) {
  }
}

}  // namespace cgdebug::cli
