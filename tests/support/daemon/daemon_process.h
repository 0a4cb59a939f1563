// daemon_process.h: the real cgdebug-daemon, as a process with a socket of its own.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "cgdebug/client.h"
#include "cgdebug/messages.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::test {

// Lifetime: killed with the object.
class DaemonProcess {
 public:
  // Returns when it accepts connections; throws when it does not. `directory` outlives it.
  // `shell`: commands that a shell runs before it becomes the daemon, as "ulimit -n 64".
  explicit DaemonProcess(const testing_support::TempDir& directory,
                         const std::vector<std::string>& arguments = {},
                         const std::string& shell = "");
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  void Signal(int number);
  // SIGSTOP, and waits until no thread of it runs.
  void Stop();
  // SIGKILL, and waits for the end.
  void Kill();
  // Waits for it to end by itself; its exit code, -1 when a signal ended it, -2 at the deadline.
  int WaitForExit();
  bool Running();

  pid_t pid() const { return pid_; }
  const std::string& socket() const { return socket_; }

  // A fresh connection each.
  client::Client Connect();
  v1::StatusReply Status();
  // The session with this key, if there is one.
  std::optional<v1::Session> Session(const std::string& key);
  // The slot of that name that was registered last.
  std::optional<v1::ProbeInfo> Probe(const std::string& key, const std::string& name);
  // Waits until the probe `name` of session `key` has `count` consumed snapshots.
  bool WaitForConsumed(const std::string& key, const std::string& name, std::uint64_t count);
  client::Tensor Get(const std::string& key, const std::string& name, std::int64_t replay = -1);

 private:
  pid_t pid_ = 0;
  std::string socket_;
};

// Starts the binary and does not wait for it.
pid_t SpawnDaemon(const std::vector<std::string>& arguments, const std::string& shell = "");

}  // namespace cgdebug::test
