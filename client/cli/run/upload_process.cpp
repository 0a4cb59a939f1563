#include "client/cli/run/upload_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "client/cli/package.h"
#include "client/cli/passwords.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {

Result<std::vector<std::string>> UploadCommand(const std::string& folder, const std::string& url,
                                               bool follow) {
  const std::filesystem::path module = PackageModule("_upload.py");
  if (module.empty()) {
    return Error{
        "uploading needs cgdebug's Python package, which is not beside cgdebug-cli. Type: "
        "pip install cgdebug"};
  }
  std::vector<std::string> command = {PythonProgram(), module.string()};
  if (follow) command.emplace_back("--follow");
  command.insert(command.end(), {"--", folder, WithPassword(url)});
  return command;
}

Result<void> UploadProcess::Start(const std::string& recording, const std::string& url,
                                  const std::string& log) {
  recording_ = recording;
  has_failed_ = true;
  auto command = UploadCommand(recording, url, /*follow=*/true);
  if (!command.ok()) return command.error();
  std::vector<char*> argv;
  for (std::string& argument : *command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (!log.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
  }
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  const int failed = posix_spawnp(&pid_, argv.front(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  has_failed_ = failed != 0;
  if (!has_failed_) return {};
  pid_ = -1;
  return ErrnoError("cannot start " + command->front(), failed);
}

bool UploadProcess::Wait() {
  const bool is_empty = !recording::RecordingReader::IsRecording(recording_);
  if (pid_ <= 0) return !has_failed_ || is_empty;
  if (is_empty) kill(pid_, SIGTERM);  // it would wait for a segment
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  pid_ = -1;
  return is_empty || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace cgdebug::cli
