// fake_daemon.h: a FAKE daemon for tests of clients: it speaks the real protocol over a real socket
// and answers what the test tells it to.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/core/base/unique_fd.h"
#include "daemon/core/wire/frame.h"
#include "proto/control.pb.h"

namespace cgdebug::testing_support {

struct FakeAnswer {
  std::vector<v1::Response> responses;
  std::string payload;     // after the last response
  bool keep_open = false;  // say "more" after the last response, and leave the stream open
  bool hang_up = false;    // close the connection after the last response
};

// Serves any number of connections, each on a thread of its own.
class FakeDaemon {
 public:
  using Handler = std::function<FakeAnswer(const v1::Request&)>;

  // `handler` answers everything except Hello, on the fake's thread.
  FakeDaemon(std::string socket_path, Handler handler);
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  void set_protocol(std::uint32_t protocol) { protocol_ = protocol; }
  std::vector<v1::Request> requests() const;  // all so far, Hello included
  const std::string& socket() const { return socket_path_; }

 private:
  void Serve();
  void ServeConnection(UniqueFd fd);
  bool Answer(int fd, const wire::Frame& frame);

  std::string socket_path_;
  Handler handler_;
  std::atomic<std::uint32_t> protocol_;
  mutable std::mutex mutex_;
  std::vector<v1::Request> requests_;
  UniqueFd listener_;
  UniqueFd stop_;
  std::thread thread_;
};

// --- answers ------------------------------------------------------------------------------------

v1::Session MakeSession(const std::string& key, int rank = -1);
v1::ProbeInfo MakeProbe(const std::string& session_key, const std::string& name);
// A snapshot of a float32 vector.
v1::Snapshot MakeSnapshot(const std::string& probe, std::uint64_t replay,
                          const std::vector<float>& values);
FakeAnswer ErrorAnswer(v1::Error::Code code, const std::string& message);

}  // namespace cgdebug::testing_support
