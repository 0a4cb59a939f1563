// run_process.h: runs a program and keeps what it wrote.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace cgdebug::testing_support {

struct ProcessResult {
  int code = 0;  // 128+n for signal n
  std::string out;
  std::string err;
};

class Process {
 public:
  Process(const std::vector<std::string>& command,
          const std::vector<std::string>& environment = {}) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    const int flags = O_WRONLY | O_CREAT;
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, (dir_ / "out").c_str(), flags,
                                       0600);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (dir_ / "err").c_str(), flags,
                                       0600);
    std::vector<std::string> arguments = command;
    std::vector<std::string> variables = environment;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string text = *variable;
      const std::string name = text.substr(0, text.find('=') + 1);
      bool is_replaced = false;
      for (const std::string& other : environment) is_replaced |= other.starts_with(name);
      if (!is_replaced) variables.push_back(text);
    }
    const int failure = ::posix_spawnp(&pid_, arguments[0].c_str(), &actions, nullptr,
                                       Pointers(&arguments).data(), Pointers(&variables).data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (failure != 0) throw std::runtime_error("cannot run " + command[0]);
  }
  ~Process() {
    if (pid_ > 0) Wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const { return ReadText(dir_ / "out"); }

  ProcessResult Wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    ProcessResult result;
    result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    result.out = ReadText(dir_ / "out");
    result.err = ReadText(dir_ / "err");
    return result;
  }

 private:
  static std::vector<char*> Pointers(std::vector<std::string>* strings) {
    std::vector<char*> pointers;
    for (std::string& text : *strings) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  TempDir dir_;
  pid_t pid_ = 0;
};

}  // namespace cgdebug::testing_support
