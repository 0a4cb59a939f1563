// Starts cgdebug-daemon as a process of its own; nothing of it is linked here.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "cgdebug/probe.h"
#include "libprobe/probe_table.h"

extern char** environ;

namespace cgdebug {
namespace {

constexpr const char* kDaemon = "cgdebug-daemon";
constexpr std::chrono::seconds kStartTimeout{10};
constexpr std::chrono::seconds kAttachTimeout{1};

bool Executable(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::string Parent(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

// CGDEBUG_DAEMON, then the bin folder of the environment or build tree that contains this library,
// then PATH.
std::string FindDaemon() {
  if (const char* path = std::getenv("CGDEBUG_DAEMON"); path != nullptr && *path != '\0')
    return path;
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&FindDaemon), &info) != 0 && info.dli_fname != nullptr) {
    std::string directory = Parent(info.dli_fname);
    for (int up = 0; up < 6 && !directory.empty(); ++up, directory = Parent(directory)) {
      for (const char* folder : {"/", "/bin/", "/daemon/"}) {
        if (Executable(directory + folder + kDaemon)) return directory + folder + kDaemon;
      }
    }
  }
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string candidate = rest.substr(0, colon) + "/" + kDaemon;
    // A relative entry names a folder of the current directory, which may belong to anybody.
    if (rest.front() == '/' && Executable(candidate)) return candidate;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return {};
}

// The exit status of `child`; 0 if the job reaps its children itself.
// Fails: throws ProbeError if the child does not end: a daemon that hangs must not hang the job.
int WaitFor(pid_t child, const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  int exit_status = 0;
  while (true) {
    const pid_t ended = waitpid(child, &exit_status, WNOHANG);
    if (ended == child) return exit_status;
    if (ended < 0 && errno != EINTR) return 0;
    if (std::chrono::steady_clock::now() > deadline) {
      throw ProbeError(ErrorKind::kSystem,
                       path + " did not say within " + std::to_string(kStartTimeout.count()) +
                           " s that it is ready. Type: cgdebug-daemon --foreground");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// posix_spawn instead of fork: no handler of the job runs and no page of it is copied. The daemon
// detaches itself and its starter ends at once, so the wait is short.
void Spawn(const std::string& path) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int fd : {0, 1, 2}) {
    posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  }
  std::string program = path;
  std::string flag = "--spawned";
  char* arguments[] = {program.data(), flag.data(), nullptr};
  pid_t child = 0;
  const int status = posix_spawn(&child, path.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) {
    throw ProbeError(ErrorKind::kSystem, "cannot start " + path + ": " + std::strerror(status) +
                                             ". Type: cgdebug-cli daemon start");
  }
  const int exit_status = WaitFor(child, path);
  if (WIFSIGNALED(exit_status)) {
    throw ProbeError(ErrorKind::kSystem,
                     path + " was ended by signal " + std::to_string(WTERMSIG(exit_status)) +
                         " while it started. Type: cgdebug-daemon --foreground");
  }
  if (WIFEXITED(exit_status) && WEXITSTATUS(exit_status) != 0) {
    throw ProbeError(ErrorKind::kSystem, path + " did not start (exit code " +
                                             std::to_string(WEXITSTATUS(exit_status)) +
                                             "). Type: cgdebug-daemon --foreground");
  }
}

}  // namespace

void StartDaemon() {
  if (DaemonForbidden()) return;
  if (ProbeTable::Instance().DaemonAlive()) return;
  const std::string path = FindDaemon();
  if (path.empty()) {
    throw ProbeError(
        ErrorKind::kSystem,
        "cgdebug-daemon was not found beside the probe library or on PATH; without it nothing is "
        "printed or compared. Install cgdebug in this environment, or set CGDEBUG_DAEMON");
  }
  Spawn(path);
  ProbeTable::Instance().AwaitDaemon(kAttachTimeout);
}

}  // namespace cgdebug
