// client.h: asks a cgdebug-daemon what it sees.
//
//   cgdebug::client::Client client;
//   if (auto connected = client.Connect({}); !connected.ok()) { ... connected.error().message ... }
//   cgdebug::Result<cgdebug::v1::ProbesReply> probes =
//       client.Ask<cgdebug::v1::ProbesReply>(cgdebug::v1::ProbesRequest());
//
// Requests and answers are the messages of proto/control.proto, which <cgdebug/messages.h> brings.
// Every error is a sentence for the person at the terminal; last_failure() says what kind it was.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "proto/control_fwd.h"

namespace google::protobuf {
class Message;
}

namespace cgdebug {
class UniqueFd;
namespace wire {
class Channel;
struct Frame;
}  // namespace wire
}  // namespace cgdebug

namespace cgdebug::client {

struct ConnectOptions {
  std::string socket;         // empty: $CGDEBUG_SOCKET, else the user's runtime directory
  bool start_daemon = false;  // when nobody listens
  std::string name = "c++";   // what the daemon's log calls this client
  // Of each request except Tail. Freeze, StartRecording and StopRecording wait for the disk, as
  // long as the daemon answers others.
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  std::vector<std::string> daemon_options = {};  // of a daemon that is started
  // A job of this /dev/shm follows, which the daemon must see. Else only a daemon that nobody chose
  // must: who names a socket may mean one of another container.
  bool is_for_job = false;
};

enum class Failure {
  kNone,
  kNoDaemon,        // nobody listens, or it could not be started
  kNothingMatched,  // no such session, probe or snapshot
  kVersion,         // the daemon speaks another protocol
  kTimeout,
  kStopped,     // by Stop
  kDaemonGone,  // the daemon closed the connection
  kOther,
};

enum class TailEnd {
  kFinished,    // everything that was asked for has come
  kStopped,     // by Stop or by the callback
  kDaemonGone,  // the daemon ended: what happened since is not in the stream
};

struct Tensor;

// Thread: one at a time, except for Stop.
// Fails: every call returns its error; none throws.
class Client {
 public:
  Client();
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  // Finds the daemon, starts it if the options say so, and checks that both speak one protocol.
  Result<void> Connect(const ConnectOptions& options);

  // Sends a request and returns its answer, both messages of proto/control.proto. How long it waits
  // stands at ConnectOptions::timeout; Stop() ends the waiting.
  template <typename Reply, typename Request>
  Result<Reply> Ask(const Request& request) {
    Reply reply;
    const Result<void> asked = AskFor(request, &reply);
    if (!asked.ok()) return asked.error();
    return reply;
  }
  // The same, and the answer as it came: the bytes of a Response that is no error.
  Result<std::string> AskForBytes(const google::protobuf::Message& request);
  // A value with its elements.
  Result<Tensor> Get(const v1::GetRequest& request);

  // Calls `on_event` for each event, on this thread, until the stream ends, Stop is called or
  // `on_event` returns false. After kStopped the connection is closed: connect again.
  Result<TailEnd> Tail(const v1::TailRequest& request,
                       const std::function<bool(const v1::TailReply&)>& on_event);

  // Ends the call in progress, and the next ones at once, until Connect is called again.
  // Thread: any; async-signal-safe.
  void Stop() noexcept;

  Failure last_failure() const { return last_failure_; }
  // The daemon's own error; empty if the last error came from elsewhere.
  const v1::Error& last_error() const { return *last_error_; }
  const std::string& socket() const { return socket_; }
  const std::string& daemon_version() const { return daemon_version_; }
  int daemon_pid() const { return daemon_pid_; }  // from the kernel, also after kVersion
  bool started_daemon() const { return started_daemon_; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  Error Fail(Failure failure, std::string message);
  Error FailWith(const v1::Error& error);
  Error FailBroken(Failure failure, const Error& error);
  Result<void> Open(const ConnectOptions& options);
  Result<void> Hello(const ConnectOptions& options);
  Result<void> CheckSeesJobs(const ConnectOptions& options, std::uint64_t its_device);
  Result<std::uint64_t> Send(const v1::Request& request);
  Result<wire::Frame> Receive(std::uint64_t request_id, Deadline deadline);
  // The body of a Response that is no error.
  Result<std::string> ReceiveBody(std::uint64_t request_id, Deadline deadline, bool* more);
  Result<void> AskFor(const google::protobuf::Message& request, google::protobuf::Message* reply);
  Result<void> ReceivePayload(std::uint64_t request_id, std::uint64_t payload_bytes,
                              std::string* payload);
  Deadline NextDeadline() const;

  std::unique_ptr<wire::Channel> channel_;
  std::unique_ptr<UniqueFd> stop_;  // an eventfd
  std::chrono::milliseconds timeout_{};
  std::uint64_t last_request_id_ = 0;
  std::string socket_;
  std::string daemon_version_;
  int daemon_pid_ = 0;
  bool started_daemon_ = false;
  Failure last_failure_ = Failure::kNone;
  std::unique_ptr<v1::Error> last_error_;
};

}  // namespace cgdebug::client
