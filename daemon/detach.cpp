#include "daemon/detach.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

namespace cgdebug {
namespace {

constexpr int kPipeFd = 3;

// Closes every descriptor above 2 except the pipe, which becomes number 3.
void CloseInherited(UniqueFd* pipe) {
  if (pipe->get() != kPipeFd) {
    dup3(pipe->get(), kPipeFd, O_CLOEXEC);
    pipe->reset(kPipeFd);
  }
  if (syscall(SYS_close_range, kPipeFd + 1, ~0u, 0) == 0) return;
  const long limit = sysconf(_SC_OPEN_MAX);  // Linux before 5.9
  for (int fd = kPipeFd + 1; fd < limit; ++fd) close(fd);
}

void PointAtNull() {
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  if (null > STDERR_FILENO) close(null);
}

void ResetSignals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) sigaction(number, &standard, nullptr);
}

Detached BecomeDaemon(UniqueFd pipe) {
  setsid();
  const pid_t daemon = fork();
  if (daemon != 0) _exit(daemon < 0 ? 1 : 0);  // so that it can never get a terminal again
  ResetSignals();
  CloseInherited(&pipe);
  PointAtNull();
  umask(077);
  [[maybe_unused]] const int ignored = chdir("/");
  Detached detached;
  detached.starter = Starter(std::move(pipe));
  return detached;
}

Detached WaitForDaemon(UniqueFd pipe, pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::string told;
  char buffer[512];
  ssize_t bytes = 0;
  while ((bytes = read(pipe.get(), buffer, sizeof(buffer))) > 0 || (bytes < 0 && errno == EINTR)) {
    if (bytes > 0) told.append(buffer, static_cast<std::size_t>(bytes));
  }
  Detached detached;
  detached.is_starter = true;
  detached.ok = told.starts_with('+');
  detached.text = told.empty()
                      ? "the daemon ended before it was ready. Type: cgdebug-daemon --foreground"
                      : told.substr(1);
  return detached;
}

}  // namespace

void Starter::Tell(char sign, const std::string& text) {
  if (!pipe_) return;
  const std::string message = sign + text;
  [[maybe_unused]] const ssize_t written = write(pipe_.get(), message.data(), message.size());
  pipe_.reset();
}

Result<Detached> Detach() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("cannot create a pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t child = fork();
  if (child < 0) return ErrnoError("cannot start a process");
  if (child == 0) {
    read_end.reset();
    return BecomeDaemon(std::move(write_end));
  }
  write_end.reset();
  return WaitForDaemon(std::move(read_end), child);
}

void RaiseLimits() {
  for (const auto resource : {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_DATA, RLIMIT_CPU}) {
    rlimit limit = {};
    if (getrlimit(resource, &limit) != 0) continue;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(resource, &limit);
  }
}

void LeaveJobsShare() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
  sched_setaffinity(0, sizeof(all), &all);  // the kernel leaves out what the cgroup may not use
  setpriority(PRIO_PROCESS, 0, 0);          // may be refused: then it stays as nice as the job
}

}  // namespace cgdebug
