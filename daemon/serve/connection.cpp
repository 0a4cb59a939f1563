#include "daemon/serve/connection.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <utility>

#include "daemon/core/wire/frame.h"
#include "daemon/log/log.h"
#include "daemon/serve/messages.h"

namespace cgdebug::serve {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxQueuedBytes = 1u << 20;
constexpr std::size_t kMaxTails = 16;
constexpr std::chrono::seconds kHelloPatience{5};

Answer ErrorAnswer(v1::Error::Code code, std::string message) {
  Answer answer;
  SetError(&answer, code, std::move(message));
  return answer;
}

}  // namespace

Connection::Connection(Socket socket, Handlers* handlers, asio::thread_pool* slow,
                       const ServeOptions& options, bool full, std::function<void()> on_change)
    : socket_(std::move(socket)),
      handlers_(handlers),
      slow_(slow),
      reader_(options.max_message_bytes),
      on_change_(std::move(on_change)),
      hello_timer_(socket_.get_executor()),
      full_(full) {}

// A client that says nothing must not keep others out.
void Connection::Start() {
  hello_timer_.expires_after(kHelloPatience);
  hello_timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
    if (cancelled || self->greeted_ || !self->open_) return;
    Log("rpc")->info("a client is disconnected: it has not said Hello in time");
    self->Close();
  });
  ReadNext();
}

void Connection::Close() {
  if (!std::exchange(open_, false)) return;
  boost::system::error_code ignored;
  socket_.close(ignored);
  hello_timer_.cancel();
  tails_.clear();
  outputs_.clear();
  on_change_();
}

bool Connection::IsFull() const { return queued_bytes_ >= kMaxQueuedBytes; }

void Connection::ReadNext() {
  if (!open_ || reading_ || answering_slowly_ || close_when_written_ || IsFull()) return;
  reading_ = true;
  reader_.Read(socket_, [self = shared_from_this()](bool ok, const std::string& why) {
    self->OnFrame(ok, why);
  });
}

void Connection::OnFrame(bool ok, const std::string& why) {
  reading_ = false;
  if (!open_) return;
  if (!ok) {
    if (!why.empty()) Log("rpc")->info("a client is disconnected: {}", why);
    return Close();
  }
  HandleFrame();
  if (!open_) return;
  on_change_();
  ReadNext();
}

void Connection::HandleFrame() {
  const wire::Frame& frame = reader_.frame();
  const std::uint64_t id = frame.header.request_id;
  v1::Request request;
  const Result<void> decoded = wire::DecodeMessage(frame, wire::FrameKind::kRequest, &request);
  if (!decoded.ok()) {
    Log("rpc")->info("a client is disconnected: {}", decoded.error().message);
    return Close();
  }
  if (full_) {
    close_when_written_ = true;
    return Send(id,
                ErrorAnswer(v1::Error::TOO_LARGE,
                            "the daemon has as many clients as it may have (--max-clients). Close "
                            "one, for example a cgdebug-cli tail -f"),
                false);
  }
  if (!greeted_ && !request.has_hello()) {
    close_when_written_ = true;
    return Send(
        id, ErrorAnswer(v1::Error::BAD_REQUEST, "the first request of a connection must be Hello"),
        false);
  }
  if (request.has_tail()) return OpenTail(id, request.tail());
  pipeline::PayloadPtr payload;
  const std::optional<Answer> answer = handlers_->AnswerNow(request, &payload);
  if (!answer) return AnswerSlowly(id, std::move(request));
  if (request.has_hello()) {
    greeted_ = !answer->has_error();
    close_when_written_ = !greeted_;
    Log("rpc")->debug("client {} {}", request.hello().client(), request.hello().version());
  }
  SendAnswer(id, *answer, payload);
}

// On another thread, because it writes gigabytes or waits for the rings to be read. Other clients
// are answered meanwhile; this client's next request is read afterwards.
void Connection::AnswerSlowly(std::uint64_t request_id, v1::Request request) {
  answering_slowly_ = true;
  auto done = [self = shared_from_this(), request_id](const Answer& answer,
                                                      const pipeline::PayloadPtr& payload) {
    self->answering_slowly_ = false;
    if (!self->open_) return;
    self->SendAnswer(request_id, answer, payload);
    self->on_change_();
    self->ReadNext();
  };
  // `done` goes back to the serve thread with the last reference to this connection.
  asio::post(*slow_, [handlers = handlers_, request = std::move(request), done = std::move(done),
                      serve_thread = socket_.get_executor()]() mutable {
    pipeline::PayloadPtr payload;
    Answer answer = handlers->AnswerSlowly(request, &payload);
    asio::post(serve_thread, [answer = std::move(answer), payload = std::move(payload),
                              done = std::move(done)] { done(answer, payload); });
  });
}

void Connection::OpenTail(std::uint64_t request_id, const v1::TailRequest& request) {
  if (tails_.size() >= kMaxTails || tails_.contains(request_id)) {
    return Send(request_id,
                ErrorAnswer(v1::Error::BAD_REQUEST,
                            fmt::format("a connection can have {} tails at a time, each with a "
                                        "request id of its own",
                                        kMaxTails)),
                false);
  }
  Answer refused;
  auto tail = TailStream::Open(handlers_->model(), request, refused.mutable_error());
  if (!tail) return Send(request_id, refused, false);
  tails_.emplace(request_id, *std::move(tail));
  Pump();
}

void Connection::Pump() {
  if (!open_) return;
  for (auto& [id, tail] : tails_) tail.Collect();
  for (auto tail = tails_.begin(); tail != tails_.end();) {
    bool done = false;
    PumpOne(tail->first, &tail->second, &done);
    tail = done ? tails_.erase(tail) : std::next(tail);
  }
}

void Connection::PumpOne(std::uint64_t request_id, TailStream* tail, bool* done) {
  while (!IsFull()) {
    Answer answer;
    auto reply = tail->Next();
    *done = tail->finished();
    if (!reply && !*done) return;
    *answer.message()->mutable_tail() = reply ? *std::move(reply) : v1::TailReply();
    Send(request_id, answer, !*done);
    if (*done) return;
  }
}

void Connection::Send(std::uint64_t request_id, const Answer& answer, bool more) {
  const std::uint16_t flags = more ? wire::kFlagMore : 0;
  Result<std::string> frame =
      wire::EncodeBody(wire::FrameKind::kResponse, flags, request_id, answer.Body());
  if (!frame.ok()) {
    const Answer too_large = ErrorAnswer(
        v1::Error::TOO_LARGE, frame.error().message + ". Select fewer probes or one session");
    frame = wire::EncodeBody(wire::FrameKind::kResponse, 0, request_id, too_large.Body());
    if (!frame.ok()) return;
  }
  Enqueue({*std::move(frame), nullptr, 0, 0});
}

void Connection::SendAnswer(std::uint64_t request_id, const Answer& answer,
                            const pipeline::PayloadPtr& payload) {
  Send(request_id, answer, payload != nullptr);
  if (payload != nullptr) SendPayload(request_id, payload);
}

void Connection::SendPayload(std::uint64_t request_id, const pipeline::PayloadPtr& payload) {
  wire::PayloadHeaders headers(request_id, payload->size());
  wire::FrameHeader header;
  std::size_t offset = 0;
  while (headers.Next(&header)) {
    const auto bytes = wire::EncodeHeader(header);
    Enqueue({std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), payload,
             offset, header.body_bytes});
    offset += header.body_bytes;
  }
}

void Connection::Enqueue(Output output) {
  queued_bytes_ += output.bytes.size() + output.payload_bytes;
  outputs_.push_back(std::move(output));
  if (!writing_) WriteNext();
}

void Connection::WriteNext() {
  if (!open_ || outputs_.empty()) return;
  writing_ = true;
  const Output& output = outputs_.front();
  const std::byte* payload =
      output.payload == nullptr ? nullptr : output.payload->data() + output.offset;
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(output.bytes),
                                                     asio::buffer(payload, output.payload_bytes)};
  asio::async_write(socket_, buffers,
                    [self = shared_from_this()](boost::system::error_code failure, std::size_t) {
                      self->writing_ = false;
                      if (!self->open_) return;
                      if (failure) return self->Close();
                      self->queued_bytes_ -= self->outputs_.front().bytes.size() +
                                             self->outputs_.front().payload_bytes;
                      self->outputs_.pop_front();
                      if (self->outputs_.empty() && self->close_when_written_) return self->Close();
                      self->WriteNext();
                      self->Pump();
                      self->ReadNext();
                      if (!self->writing_) self->on_change_();
                    });
}

}  // namespace cgdebug::serve
