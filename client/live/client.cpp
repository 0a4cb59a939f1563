#include "cgdebug/client.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>

#include "cgdebug/messages.h"
#include "daemon/core/base/terminate.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/base/wire_format.h"
#include "daemon/core/endpoint/autostart.h"
#include "daemon/core/endpoint/daemon_mark.h"
#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/endpoint/runtime_dir.h"
#include "daemon/core/wire/channel.h"
#include "daemon/core/wire/frame.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::client {
namespace {

constexpr const char* kRestart = "Type: cgdebug-cli daemon stop   and run this again";
// Allocates up to this much on the daemon's word; allocates the rest as it comes.
constexpr std::uint64_t kReserveBytes = 256u << 20;

Failure FailureOf(v1::Error::Code code) {
  switch (code) {
    case v1::Error::NO_SESSION:
    case v1::Error::NO_PROBE:
    case v1::Error::NO_SNAPSHOT:
    case v1::Error::NO_RECORDING:
      return Failure::kNothingMatched;
    case v1::Error::VERSION:
      return Failure::kVersion;
    default:
      return Failure::kOther;
  }
}

constexpr const char* kNoResponse = "the body of a frame is not a cgdebug.v1.Response";

// Whether the answer is an error: it has field `error`.
bool HasError(std::string_view response) {
  WireReader in(response);
  while (in.Next()) {
    if (in.field() == v1::Response::kErrorFieldNumber) return true;
  }
  return !in.ok();
}

// The field of a Request or Response whose type is that of `message`.
google::protobuf::Message* FieldOf(const google::protobuf::Message& message,
                                   google::protobuf::Message* parent) {
  const google::protobuf::OneofDescriptor* kinds = parent->GetDescriptor()->oneof_decl(0);
  for (int i = 0; i < kinds->field_count(); ++i) {
    if (kinds->field(i)->message_type() != message.GetDescriptor()) continue;
    return parent->GetReflection()->MutableMessage(parent, kinds->field(i));
  }
  std::abort();  // it is no message that Ask() takes
}

// Such a request takes as long as the disk takes, which may be any time.
bool WaitsForDisk(const v1::Request& request) {
  return request.has_freeze() || request.has_record_start() || request.has_record_stop();
}

// Whether the daemon is well: it greets a client that comes new.
bool GreetsNew(const std::string& socket, std::chrono::milliseconds timeout) {
  return Client().Connect({.socket = socket, .timeout = timeout}).ok();
}

std::string OurVersion() {
  return "cgdebug " CGDEBUG_VERSION " speaks protocol " + std::to_string(wire::kProtocol);
}

}  // namespace

Client::Client()
    : stop_(std::make_unique<UniqueFd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      last_error_(std::make_unique<v1::Error>()) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

void Client::Stop() noexcept {
  const int saved_errno = errno;
  ::eventfd_write(stop_->get(), 1);
  errno = saved_errno;
}

Error Client::Fail(Failure failure, std::string message) {
  last_failure_ = failure;
  return Error{std::move(message)};
}

Error Client::FailWith(const v1::Error& error) {
  *last_error_ = error;
  return Fail(FailureOf(error.code()), error.message());
}

// The rest of a broken request or answer would be taken for a part of the next one.
Error Client::FailBroken(Failure failure, const Error& error) {
  channel_.reset();
  return Fail(failure, error.message);
}

Client::Deadline Client::NextDeadline() const {
  return std::chrono::steady_clock::now() + timeout_;
}

Result<void> Client::Open(const ConnectOptions& options) {
  const auto environment = RuntimeEnvironment::OfThisProcess();
  const Result<std::string> path = options.start_daemon
                                       ? PrepareSocketPath(environment, options.socket)
                                       : SocketPath(environment, options.socket);
  if (!path.ok()) return Fail(Failure::kOther, path.error().message);
  socket_ = *path;
  wire::AutostartOptions autostart;
  autostart.arguments = options.daemon_options;
  if (!IsChosen(environment, options.socket)) {
    autostart.find_socket = [this, &environment] {
      const Result<std::string> now = SocketPath(environment);
      if (now.ok()) socket_ = *now;
      return socket_;
    };
  }
  Result<UniqueFd> fd = options.start_daemon
                            ? wire::ConnectOrStart(socket_, autostart, &started_daemon_)
                            : wire::TryConnect(socket_);
  if (!fd.ok()) return Fail(Failure::kNoDaemon, fd.error().message);
  if (!*fd) return Fail(Failure::kNoDaemon, wire::NoDaemon(socket_).message);
  const Result<wire::Peer> peer = wire::CheckPeer(fd->get());
  if (!peer.ok()) return Fail(Failure::kOther, peer.error().message);
  daemon_pid_ = peer->pid;
  channel_ = std::make_unique<wire::Channel>(*std::move(fd));
  return {};
}

Result<void> Client::Connect(const ConnectOptions& options) {
  channel_.reset();
  eventfd_t ignored = 0;
  ::eventfd_read(stop_->get(), &ignored);
  timeout_ = options.timeout;
  started_daemon_ = false;
  daemon_version_.clear();
  Result<void> opened = Open(options);
  if (!opened.ok()) return opened;
  Result<void> greeted = Hello(options);
  // A daemon that is about to end, or was just killed, accepts and answers no more.
  if (!greeted.ok() && channel_ == nullptr && last_failure_ != Failure::kStopped) {
    opened = Open(options);
    if (!opened.ok()) return opened;
    greeted = Hello(options);
  }
  if (!greeted.ok()) channel_.reset();
  return greeted;
}

Result<void> Client::Hello(const ConnectOptions& options) {
  v1::Hello hello;
  hello.set_protocol(wire::kProtocol);
  hello.set_client(options.name);
  hello.set_version(CGDEBUG_VERSION);
  const Result<v1::HelloReply> reply = Ask<v1::HelloReply>(hello);
  if (!reply.ok()) {
    if (last_failure_ != Failure::kVersion) return reply.error();
    return Fail(Failure::kVersion,
                "the daemon (pid " + std::to_string(daemon_pid_) +
                    ") and this client do not speak the same protocol: " + reply.error().message +
                    "; " + OurVersion() + ". " + kRestart);
  }
  const v1::HelloReply& daemon = *reply;
  daemon_version_ = daemon.version();
  if (daemon.protocol() == wire::kProtocol) return CheckSeesJobs(options, daemon.shm_device());
  return Fail(Failure::kVersion, "the daemon (pid " + std::to_string(daemon_pid_) +
                                     ") is cgdebug " + daemon.version() + " and speaks protocol " +
                                     std::to_string(daemon.protocol()) + ", this is " +
                                     OurVersion() + ". " + kRestart);
}

// Containers may share /tmp, where the daemon listens, and not /dev/shm, where the jobs write.
Result<void> Client::CheckSeesJobs(const ConnectOptions& options, std::uint64_t its_device) {
  const std::uint64_t ours = DeviceOf(layout::kShmDirectory);
  const bool is_known = its_device != 0 && ours != 0;
  if (!is_known || its_device == ours) return {};
  if (!options.is_for_job && IsChosen(RuntimeEnvironment::OfThisProcess(), options.socket)) {
    return {};
  }
  return Fail(Failure::kNoDaemon, wire::OtherContainer(socket_, daemon_pid_).message);
}

Result<std::uint64_t> Client::Send(const v1::Request& request) {
  last_failure_ = Failure::kNone;
  last_error_->Clear();
  if (channel_ == nullptr) return Fail(Failure::kOther, "not connected: call Connect first");
  const std::uint64_t id = ++last_request_id_;
  const Result<std::string> bytes =
      wire::EncodeMessage(wire::FrameKind::kRequest, /*flags=*/0, id, request);
  if (!bytes.ok()) return Fail(Failure::kOther, bytes.error().message);
  const Result<void> written = channel_->Write(*bytes, NextDeadline());
  if (!written.ok()) return FailBroken(Failure::kDaemonGone, written.error());
  return id;
}

Result<wire::Frame> Client::Receive(std::uint64_t request_id, wire::Deadline deadline) {
  wire::Frame frame;
  std::string error;
  while (true) {
    switch (channel_->Read(&frame, deadline, stop_->get(), &error)) {
      case wire::ReadStatus::kFrame:
        // A late answer to a request that timed out is not the answer to this one.
        if (frame.header.request_id == request_id) return frame;
        continue;
      case wire::ReadStatus::kClosed:
        return FailBroken(Failure::kDaemonGone,
                          Error{"the daemon closed the connection. Type: cgdebug-cli daemon logs"});
      case wire::ReadStatus::kTimeout:
        return Fail(Failure::kTimeout, "the daemon did not answer within " +
                                           std::to_string(timeout_.count()) +
                                           " ms. Type: cgdebug-cli daemon logs");
      case wire::ReadStatus::kStopped:
        return FailBroken(Failure::kStopped, Error{"stopped"});
      case wire::ReadStatus::kError:
        return FailBroken(Failure::kOther, Error{error + ". Type: cgdebug-cli daemon logs"});
    }
  }
}

Result<std::string> Client::ReceiveBody(std::uint64_t request_id, wire::Deadline deadline,
                                        bool* more) {
  Result<wire::Frame> frame = Receive(request_id, deadline);
  if (!frame.ok()) return frame.error();
  if (frame->header.kind != wire::FrameKind::kResponse || HasError(frame->body)) {
    v1::Response response;
    const Result<void> decoded = wire::DecodeMessage(*frame, wire::FrameKind::kResponse, &response);
    if (!decoded.ok()) return Fail(Failure::kOther, decoded.error().message);
    return FailWith(response.error());
  }
  *more = frame->header.more();
  return std::move(frame->body);
}

Result<std::string> Client::AskForBytes(const google::protobuf::Message& request) {
  v1::Request call;
  FieldOf(request, &call)->CopyFrom(request);
  const Result<std::uint64_t> id = Send(call);
  if (!id.ok()) return id.error();
  bool more = false;
  while (true) {
    Result<std::string> body = ReceiveBody(*id, NextDeadline(), &more);
    const bool is_late = !body.ok() && last_failure_ == Failure::kTimeout;
    if (!is_late || !WaitsForDisk(call) || !GreetsNew(socket_, timeout_)) return body;
  }
}

Result<void> Client::AskFor(const google::protobuf::Message& request,
                            google::protobuf::Message* reply) {
  const Result<std::string> body = AskForBytes(request);
  if (!body.ok()) return body.error();
  v1::Response response;
  if (!response.ParseFromString(*body)) return Fail(Failure::kOther, kNoResponse);
  google::protobuf::Message* field = FieldOf(*reply, &response);
  reply->GetReflection()->Swap(reply, field);
  return {};
}

Result<void> Client::ReceivePayload(std::uint64_t request_id, std::uint64_t payload_bytes,
                                    std::string* payload) {
  payload->reserve(std::min(payload_bytes, kReserveBytes));
  bool more = true;
  while (more) {
    const Result<wire::Frame> frame = Receive(request_id, NextDeadline());
    if (!frame.ok()) return frame.error();
    if (frame->header.kind != wire::FrameKind::kPayload ||
        frame->body.size() > payload_bytes - payload->size()) {
      return FailBroken(Failure::kOther,
                        Error{"the daemon sent a different payload from the one it announced"});
    }
    payload->append(frame->body);
    more = frame->header.more();
  }
  if (payload->size() == payload_bytes) return {};
  return Fail(Failure::kOther, "the daemon announced " + std::to_string(payload_bytes) +
                                   " bytes of tensor and sent " + std::to_string(payload->size()));
}

Result<Tensor> Client::Get(const v1::GetRequest& request) {
  Result<v1::GetReply> reply = Ask<v1::GetReply>(request);
  if (!reply.ok()) return reply.error();
  Tensor tensor{*std::move(reply), ""};
  if (tensor.reply.payload_bytes() == 0) return tensor;
  try {
    const MayRunOutOfMemory large;
    const Result<void> received =
        ReceivePayload(last_request_id_, tensor.reply.payload_bytes(), &tensor.payload);
    if (!received.ok()) return received.error();
  } catch (const std::bad_alloc&) {
    return FailBroken(Failure::kOther,
                      Error{"no memory for a tensor of " +
                            std::to_string(tensor.reply.payload_bytes()) + " bytes"});
  }
  return tensor;
}

Result<TailEnd> Client::Tail(const v1::TailRequest& request,
                             const std::function<bool(const v1::TailReply&)>& on_event) {
  v1::Request call;
  *call.mutable_tail() = request;
  const Result<std::uint64_t> id = Send(call);
  if (!id.ok()) return id.error();
  bool more = true;
  while (more) {
    const Result<std::string> body = ReceiveBody(*id, wire::kNoDeadline, &more);
    if (!body.ok()) {
      if (last_failure_ == Failure::kDaemonGone) return TailEnd::kDaemonGone;
      if (last_failure_ == Failure::kStopped) return TailEnd::kStopped;
      return body.error();
    }
    v1::Response response;
    if (!response.ParseFromString(*body)) return Fail(Failure::kOther, kNoResponse);
    if (response.tail().event_case() == v1::TailReply::EVENT_NOT_SET) continue;
    if (!on_event(response.tail())) {
      channel_.reset();
      return TailEnd::kStopped;
    }
  }
  return TailEnd::kFinished;
}

}  // namespace cgdebug::client
