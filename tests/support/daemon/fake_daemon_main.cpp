// A FAKE cgdebug-daemon for tests of autostart: detaches as the real one, takes the lock file,
// listens, answers Hello and Shutdown, and writes one line a start into "<socket>.starts".
#include <fcntl.h>
#include <sys/file.h>

#include <condition_variable>
#include <fstream>
#include <iostream>
#include <utility>

#include "daemon/detach.h"
#include "tests/support/daemon/fake_daemon.h"

int main(int argc, char** argv) {
  using namespace cgdebug;
  std::string socket_path;
  bool spawned = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--spawned") spawned = true;
    if (argument == "--socket" && i + 1 < argc) socket_path = argv[++i];
  }
  if (!spawned || socket_path.empty()) {
    std::cerr << "fake daemon: wants --spawned --socket PATH\n";
    return 2;
  }
  Result<Detached> detached = Detach();
  if (!detached.ok()) return 2;
  if (detached->is_starter) return detached->ok ? 0 : 2;
  Starter starter = std::move(detached->starter);
  const UniqueFd lock(::open((socket_path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    starter.Ready("another daemon runs already");
    return 0;
  }
  std::ofstream(socket_path + ".starts", std::ios::app) << ::getpid() << "\n";

  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  testing_support::FakeDaemon daemon(socket_path, [&](const v1::Request& request) {
    testing_support::FakeAnswer answer;
    v1::Response& response = answer.responses.emplace_back();
    if (request.has_shutdown()) {
      response.mutable_shutdown()->set_message("bye");
      const std::lock_guard guard(mutex);
      stopping = true;
      changed.notify_one();
    } else {
      response.mutable_error()->set_code(v1::Error::BAD_REQUEST);
      response.mutable_error()->set_message("the fake daemon knows Hello and Shutdown only");
    }
    return answer;
  });
  starter.Ready("started");
  std::unique_lock guard(mutex);
  changed.wait(guard, [&] { return stopping; });
  return 0;
}
