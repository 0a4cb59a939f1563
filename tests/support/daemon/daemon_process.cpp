#include "tests/support/daemon/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/support/wait_until.h"

extern char** environ;

namespace cgdebug::test {
namespace {

client::ConnectOptions Patient(const std::string& socket) {
  return {.socket = socket, .name = "test", .timeout = kDeadline};
}

}  // namespace

pid_t SpawnDaemon(const std::vector<std::string>& arguments, const std::string& shell) {
  std::vector<std::string> words = {CGDEBUG_DAEMON_BINARY};
  if (!shell.empty()) {
    words = {"/bin/sh", "-c", shell + " && exec \"$0\" \"$@\"", CGDEBUG_DAEMON_BINARY};
  }
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ) != 0) {
    throw std::runtime_error("cannot start " + words[0]);
  }
  return pid;
}

DaemonProcess::DaemonProcess(const testing_support::TempDir& directory,
                             const std::vector<std::string>& arguments, const std::string& shell)
    : socket_(directory / "d.sock") {
  std::vector<std::string> words = {"--foreground",      "--socket",    socket_, "--log-file",
                                    directory / "d.log", "--log-level", "debug"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  pid_ = SpawnDaemon(words, shell);
  const bool up = WaitUntil([&] {
    client::Client client;
    return client.Connect(Patient(socket_)).ok();
  });
  if (!up) throw std::runtime_error("the daemon does not accept connections");
}

DaemonProcess::~DaemonProcess() { Kill(); }

void DaemonProcess::Signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

void DaemonProcess::Stop() {
  kill(pid_, SIGSTOP);
  waitpid(pid_, nullptr, WUNTRACED);
}

void DaemonProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

int DaemonProcess::WaitForExit() {
  int status = 0;
  if (!WaitUntil([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) return -2;
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool DaemonProcess::Running() {
  if (pid_ <= 0) return false;
  if (waitpid(pid_, nullptr, WNOHANG) == 0) return true;
  pid_ = 0;
  return false;
}

client::Client DaemonProcess::Connect() {
  client::Client client;
  const auto connected = client.Connect(Patient(socket_));
  if (!connected.ok()) throw std::runtime_error(connected.error().message);
  return client;
}

v1::StatusReply DaemonProcess::Status() {
  client::Client client = Connect();
  auto status = client.Ask<v1::StatusReply>(v1::StatusRequest());
  if (!status.ok()) throw std::runtime_error(status.error().message);
  return *std::move(status);
}

std::optional<v1::Session> DaemonProcess::Session(const std::string& key) {
  const v1::StatusReply status = Status();
  for (const v1::Session& session : status.sessions()) {
    if (session.key() == key) return session;
  }
  return std::nullopt;
}

std::optional<v1::ProbeInfo> DaemonProcess::Probe(const std::string& key, const std::string& name) {
  client::Client client = Connect();
  v1::ProbesRequest request;
  request.set_session(key);
  request.add_probes(name);  // a large job is listed in parts
  const auto probes = client.Ask<v1::ProbesReply>(request);
  if (!probes.ok()) return std::nullopt;
  std::optional<v1::ProbeInfo> last;
  for (const v1::ProbeInfo& probe : probes->probes()) {
    if (probe.name() == name) last = probe;
  }
  return last;
}

bool DaemonProcess::WaitForConsumed(const std::string& key, const std::string& name,
                                    std::uint64_t count) {
  return WaitUntil([&] {
    const auto probe = Probe(key, name);
    return probe && probe->counters().consumed() == count;
  });
}

client::Tensor DaemonProcess::Get(const std::string& key, const std::string& name,
                                  std::int64_t replay) {
  client::Client client = Connect();
  v1::GetRequest request;
  request.set_session(key);
  request.set_probe(name);
  request.set_replay(replay);
  auto tensor = client.Get(request);
  if (!tensor.ok()) throw std::runtime_error(tensor.error().message);
  return *std::move(tensor);
}

}  // namespace cgdebug::test
