#include "daemon/core/wire/autostart.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "daemon/core/wire/endpoint.h"

namespace cgdebug::wire {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kRetry{5};
// The daemon that was there when ours left may have been about to end.
constexpr milliseconds kStartAgainAfter{300};
constexpr off_t kMaxLogBytes = 4 << 20;
constexpr std::size_t kShownLogBytes = 2000;

bool IsExecutable(const fs::path& path) {
  std::error_code failure;
  return fs::is_regular_file(path, failure) && ::access(path.c_str(), X_OK) == 0;
}

// Opened before the daemon exists, so that a daemon that cannot even load its libraries is heard.
Result<UniqueFd> OpenLog(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && info.st_size > kMaxLogBytes) {
    ::rename(path.c_str(), (path + ".1").c_str());
  }
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return ErrnoError("cannot open the daemon's log " + path);
  return fd;
}

std::string LogSince(const std::string& path, off_t offset) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.size() > kShownLogBytes) text.erase(0, text.size() - kShownLogBytes);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Everything a background process may not keep from the terminal it was started in.
class SpawnSetup {
 public:
  explicit SpawnSetup(int log_fd) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, log_fd, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, log_fd, STDERR_FILENO);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    ::posix_spawn_file_actions_addchdir_np(&actions_, "/");
    ::posix_spawnattr_init(&attributes_);
    sigset_t signals;
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    ::posix_spawnattr_setflags(
        &attributes_,
        static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  // `socket_path` is empty when the daemon finds its place by itself.
  Result<pid_t> Spawn(const std::string& executable, const std::string& socket_path,
                      const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {executable, "--spawned"};
    if (!socket_path.empty()) arguments.insert(arguments.end(), {"--socket", socket_path});
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    const int failure =
        ::posix_spawn(&pid, executable.c_str(), &actions_, &attributes_, argv.data(), environ);
    if (failure != 0) return ErrnoError("cannot start " + executable, failure);
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::string ExitText(int status) {
  if (WIFSIGNALED(status)) return "was killed by signal " + std::to_string(WTERMSIG(status));
  return "exited with " + std::to_string(WEXITSTATUS(status));
}

Error DidNotComeUp(const std::string& what, const std::string& log_path, off_t log_offset) {
  const std::string log = LogSince(log_path, log_offset);
  return Error{what + (log.empty() ? ". It said nothing" : ". It said:\n" + log) +
               "\nlog: " + log_path + "\nTo see it start, type: cgdebug-daemon --foreground"};
}

// `start` starts one more.
Result<UniqueFd> WaitUntilItAccepts(pid_t pid, const std::string& socket_path,
                                    const AutostartOptions& options,
                                    const std::function<Result<pid_t>()>& start,
                                    const std::string& log_path, off_t log_offset) {
  const milliseconds timeout = options.timeout;
  const auto deadline = steady_clock::now() + timeout;
  bool child_gone = false;
  auto start_again = steady_clock::time_point::max();
  while (true) {
    Result<UniqueFd> fd = TryConnect(options.find_socket ? options.find_socket() : socket_path);
    if (!fd.ok() || *fd) return fd;
    int status = 0;
    if (!child_gone && ::waitpid(pid, &status, WNOHANG) == pid) {
      // Exit 0: another daemon has the lock, and will accept soon.
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return DidNotComeUp("the daemon " + ExitText(status), log_path, log_offset);
      }
      child_gone = true;
      start_again = steady_clock::now() + kStartAgainAfter;
    }
    if (child_gone && steady_clock::now() >= start_again) {
      const Result<pid_t> again = start();
      if (!again.ok()) return again.error();
      pid = *again;
      child_gone = false;
    }
    if (steady_clock::now() >= deadline) {
      return DidNotComeUp(
          "the daemon accepted no connection within " + std::to_string(timeout.count()) + " ms",
          log_path, log_offset);
    }
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace

Result<std::string> FindDaemon() {
  const char* chosen = std::getenv("CGDEBUG_DAEMON");
  if (chosen != nullptr && *chosen != '\0') return std::string(chosen);
  std::error_code failure;
  const fs::path self = fs::read_symlink("/proc/self/exe", failure);
  if (!failure) {
    const fs::path beside = self.parent_path() / kDaemonName;
    if (IsExecutable(beside)) return beside.string();
  }
  const char* path_variable = std::getenv("PATH");
  std::string_view path = path_variable == nullptr ? "" : path_variable;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find(':'), path.size());
    // An entry that is not absolute means "whatever directory this is", which may be anybody's.
    if (const fs::path directory = path.substr(0, end); directory.is_absolute()) {
      if (IsExecutable(directory / kDaemonName)) return (directory / kDaemonName).string();
    }
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return Error{std::string(kDaemonName) + " is neither beside " + self.string() +
               " nor on PATH. Install it there, or start it by hand and use --no-spawn"};
}

Result<UniqueFd> ConnectOrStart(const std::string& socket_path, const AutostartOptions& options,
                                bool* started) {
  *started = false;
  Result<UniqueFd> fd = TryConnect(socket_path);
  if (!fd.ok() || *fd) return fd;

  const Result<std::string> executable =
      options.executable.empty() ? FindDaemon() : Result<std::string>(options.executable);
  if (!executable.ok()) return executable.error();
  std::error_code failure;
  const std::string absolute_socket = fs::absolute(socket_path, failure).string();
  const std::string log_path = LogPath(absolute_socket);
  const Result<UniqueFd> log = OpenLog(log_path);
  if (!log.ok()) return log.error();
  const off_t log_offset = ::lseek(log->get(), 0, SEEK_END);

  const auto start = [&] {
    return SpawnSetup(log->get())
        .Spawn(*executable, options.find_socket ? "" : absolute_socket, options.arguments);
  };
  const Result<pid_t> pid = start();
  if (!pid.ok()) return pid.error();
  *started = true;
  return WaitUntilItAccepts(*pid, absolute_socket, options, start, log_path, log_offset);
}

}  // namespace cgdebug::wire
