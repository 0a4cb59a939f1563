// child_process.h: runs a function as a process of its own, connected with the test by a line.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <utility>

namespace cgdebug::test {

// One end of a connection that carries lines of text in both directions.
class Line {
 public:
  Line(int in, int out) : in_(in), out_(out) {}

  void Send(const std::string& text = "") const {
    const std::string line = text + "\n";
    if (write(out_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(99);
  }
  // "" also when the other end is gone.
  std::string Receive() const {
    std::string text;
    char c = 0;
    ssize_t got = 0;
    while ((got = read(in_, &c, 1)) == 1 || (got < 0 && errno == EINTR)) {
      if (got == 1 && c == '\n') return text;
      if (got == 1) text += c;
    }
    return text;
  }

 private:
  int in_;
  int out_;
};

// Lifetime: killed with the object, and with the test.
class ChildProcess {
 public:
  // The child runs `function(line)` and ends with its exit code.
  template <typename Function>
  explicit ChildProcess(Function&& function) {
    int down[2];
    int up[2];
    if (pipe(down) != 0 || pipe(up) != 0) throw std::runtime_error("no pipes");
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(98);
      close(down[1]);
      close(up[0]);
      _exit(function(Line(down[0], up[1])));
    }
    close(down[0]);
    close(up[1]);
    in_ = up[0];
    out_ = down[1];
  }
  ~ChildProcess() {
    Kill();
    close(in_);
    close(out_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  Line line() const { return {in_, out_}; }
  void Signal(int number) const { kill(pid_, number); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    Wait();
  }
  // Its exit code; 256 + n when signal n ended it.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1;
  int out_ = -1;
};

template <typename Function>
int InChild(Function&& function) {
  ChildProcess child([&](const Line&) { return function(); });
  return child.Wait();
}

}  // namespace cgdebug::test
