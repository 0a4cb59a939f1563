#include "libprobe/launch/daemon_start.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>

extern char** environ;

namespace cgdebug::launch {
namespace {

using std::chrono::steady_clock;

constexpr int kFoldersUp = 6;
constexpr std::size_t kMaxSaidBytes = 2000;
constexpr std::chrono::milliseconds kPollInterval{1};

bool IsExecutable(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::string Parent(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

std::string Executable() {
  char path[PATH_MAX];
  const ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path));
  return bytes > 0 ? std::string(path, static_cast<std::size_t>(bytes)) : std::string();
}

// The shared library that holds this code; empty when it is in the executable.
std::string OwnLibrary() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&FindDaemon), &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  struct stat library = {}, executable = {};
  const bool is_executable =
      stat(info.dli_fname, &library) == 0 && stat("/proc/self/exe", &executable) == 0 &&
      library.st_dev == executable.st_dev && library.st_ino == executable.st_ino;
  return is_executable || info.dli_fname[0] != '/' ? std::string() : info.dli_fname;
}

// The two ends of a pipe, closed in programs that this process starts.
struct Pipe {
  int read_end = -1;
  int write_end = -1;

  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    read_end = ends[0];
    write_end = ends[1];
    fcntl(read_end, F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    CloseWriteEnd();
    if (read_end >= 0) close(read_end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void CloseWriteEnd() {
    if (write_end >= 0) close(write_end);
    write_end = -1;
  }
};

// Adds what lies in the pipe; false when nobody can write into it any more.
bool Drain(int fd, std::string* said) {
  char buffer[512];
  while (true) {
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
    if (bytes == 0) return false;
    said->append(buffer, static_cast<std::size_t>(bytes));
    if (said->size() > kMaxSaidBytes) said->erase(0, said->size() - kMaxSaidBytes);
  }
}

// 0, or the error of posix_spawn. `output` becomes the program's stdout and stderr.
int Spawn(const std::string& program, const std::vector<std::string>& arguments, int output,
          pid_t* child) {
  std::vector<std::string> words = {program, "--spawned"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  const int failure = posix_spawn(child, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return failure;
}

std::string Described(const std::string& problem, std::string said) {
  while (!said.empty() && said.back() == '\n') said.pop_back();
  return problem + (said.empty() ? ". It said nothing" : ". It said:\n" + said);
}

}  // namespace

std::string FindDaemon() {
  if (const char* path = std::getenv("CGDEBUG_DAEMON"); path != nullptr && *path != '\0') {
    return path;
  }
  std::string folder = Parent(OwnLibrary());
  for (int up = 0; up < kFoldersUp && !folder.empty(); ++up, folder = Parent(folder)) {
    for (const char* inside : {"/", "/bin/", "/daemon/"}) {
      if (IsExecutable(folder + inside + kDaemonName)) return folder + inside + kDaemonName;
    }
  }
  const std::string beside = Parent(Executable()) + "/" + kDaemonName;
  if (IsExecutable(beside)) return beside;
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string candidate = rest.substr(0, colon) + "/" + kDaemonName;
    if (rest.front() == '/' && IsExecutable(candidate)) return candidate;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return {};
}

std::string StartDaemon(const std::string& program, const std::vector<std::string>& arguments,
                        std::chrono::milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  Pipe output;
  pid_t child = 0;
  const int failure =
      output.write_end < 0 ? errno : Spawn(program, arguments, output.write_end, &child);
  if (failure != 0) return program + " cannot be started: " + std::strerror(failure);
  output.CloseWriteEnd();
  std::string said;
  int status = 0;
  for (bool is_open = true;;) {
    is_open = is_open && Drain(output.read_end, &said);
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) return {};  // the job reaps its children itself
    if (steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return Described(program + " did not say within " + std::to_string(timeout.count()) +
                           " ms that the daemon is ready",
                       said);
    }
    pollfd wait = {output.read_end, POLLIN, 0};
    if (is_open) {
      poll(&wait, 1, static_cast<int>(kPollInterval.count()));
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  Drain(output.read_end, &said);
  if (WIFSIGNALED(status)) {
    return Described(
        program + " was ended by signal " + std::to_string(WTERMSIG(status)) + " while it started",
        said);
  }
  if (WEXITSTATUS(status) == 0) return {};
  return Described(
      program + " did not start the daemon: exit code " + std::to_string(WEXITSTATUS(status)),
      said);
}

}  // namespace cgdebug::launch
