#include "cgdebug/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "cgdebug/messages.h"
#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/wire/channel.h"
#include "tests/support/daemon/fake_daemon.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::client {
namespace {

using ::testing::HasSubstr;
using testing_support::ErrorAnswer;
using testing_support::FakeAnswer;
using testing_support::FakeDaemon;
using testing_support::MakeSnapshot;

class ClientTest : public ::testing::Test {
 protected:
  void Serve(FakeDaemon::Handler handler) {
    daemon_ = std::make_unique<FakeDaemon>(dir_ / "daemon.sock", std::move(handler));
  }
  ConnectOptions Options() {
    ConnectOptions options;
    options.socket = dir_ / "daemon.sock";
    return options;
  }
  void Connect() {
    const Result<void> connected = client_.Connect(Options());
    ASSERT_TRUE(connected.ok()) << connected.error().message;
  }

  testing_support::TempDir dir_;
  std::unique_ptr<FakeDaemon> daemon_;
  Client client_;
};

TEST_F(ClientTest, NobodyListeningSaysWhatToType) {
  const Result<void> connected = client_.Connect(Options());
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(client_.last_failure(), Failure::kNoDaemon);
  EXPECT_THAT(connected.error().message, HasSubstr("cgdebug-cli daemon start"));
}

TEST_F(ClientTest, FirstRequestIsHello) {
  Serve([](const v1::Request&) { return FakeAnswer{{v1::Response()}, "", false, false}; });
  Connect();
  EXPECT_EQ(client_.daemon_version(), "9.8.7");
  EXPECT_EQ(client_.daemon_pid(), ::getpid());
  ASSERT_EQ(daemon_->requests().size(), 1u);
  EXPECT_EQ(daemon_->requests()[0].hello().protocol(), 3u);
}

TEST_F(ClientTest, DaemonOfAnotherProtocolIsRefusedAndBothVersionsNamed) {
  Serve([](const v1::Request&) { return FakeAnswer{}; });
  daemon_->set_protocol(7);
  const Result<void> connected = client_.Connect(Options());
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(client_.last_failure(), Failure::kVersion);
  EXPECT_THAT(connected.error().message, HasSubstr("9.8.7"));
  EXPECT_THAT(connected.error().message, HasSubstr("protocol 7"));
  EXPECT_THAT(connected.error().message, HasSubstr("protocol 3"));
  EXPECT_THAT(connected.error().message, HasSubstr("cgdebug-cli daemon stop"));
}

TEST_F(ClientTest, ErrorOfTheDaemonKeepsItsKindAndItsNearNames) {
  Serve([](const v1::Request&) {
    FakeAnswer answer = ErrorAnswer(v1::Error::NO_PROBE, "no probe matches 'x'");
    answer.responses[0].mutable_error()->add_close("x_embed");
    return answer;
  });
  Connect();
  const Result<v1::ProbesReply> reply = client_.Ask<v1::ProbesReply>(v1::ProbesRequest());
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().message, "no probe matches 'x'");
  EXPECT_EQ(client_.last_failure(), Failure::kNothingMatched);
  EXPECT_EQ(client_.last_error().close(0), "x_embed");
}

TEST_F(ClientTest, ADaemonThatEndedBetweenTwoRequestsSaysWhatToType) {
  Serve([](const v1::Request&) { return FakeAnswer{{v1::Response()}, "", false, false}; });
  Connect();
  daemon_.reset();
  const Result<v1::StatusReply> status = client_.Ask<v1::StatusReply>(v1::StatusRequest());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(client_.last_failure(), Failure::kDaemonGone);
  EXPECT_THAT(status.error().message, HasSubstr("Type: cgdebug-cli daemon logs"));
}

FakeAnswer TensorAnswer(std::uint64_t announced_bytes, const std::string& payload) {
  FakeAnswer answer;
  answer.responses.emplace_back().mutable_get()->set_payload_bytes(announced_bytes);
  answer.payload = payload;
  return answer;
}

TEST_F(ClientTest, GetPutsThePayloadTogetherFromItsFrames) {
  std::string payload(2 * wire::kMaxPayloadFrameBytes + 12, '\0');
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 31);
  Serve([&](const v1::Request&) { return TensorAnswer(payload.size(), payload); });
  Connect();
  for (int repeat = 0; repeat < 2; ++repeat) {
    const Result<Tensor> tensor = client_.Get({});
    ASSERT_TRUE(tensor.ok()) << tensor.error().message;
    EXPECT_TRUE(tensor->payload == payload);
  }
}

TEST_F(ClientTest, PayloadOfAnotherLengthThanAnnouncedIsAnError) {
  for (const std::uint64_t announced_bytes : {std::uint64_t{7}, std::uint64_t{9}}) {
    daemon_.reset();
    Serve([=](const v1::Request&) { return TensorAnswer(announced_bytes, "12345678"); });
    Connect();
    EXPECT_FALSE(client_.Get({}).ok()) << announced_bytes;
  }
}

FakeAnswer ThreeEvents() {
  FakeAnswer answer;
  for (std::uint64_t replay = 1; replay <= 3; ++replay) {
    *answer.responses.emplace_back().mutable_tail()->mutable_snapshot() =
        MakeSnapshot("blk3.attn", replay, {1.0f});
  }
  return answer;
}

TEST_F(ClientTest, TailDeliversEveryEventInOrderAndTheConnectionGoesOn) {
  Serve([](const v1::Request& request) {
    return request.has_tail() ? ThreeEvents() : FakeAnswer{{v1::Response()}, "", false, false};
  });
  Connect();
  std::vector<std::uint64_t> replays;
  const Result<TailEnd> end = client_.Tail({}, [&](const v1::TailReply& event) {
    replays.push_back(event.snapshot().replay());
    return true;
  });
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, TailEnd::kFinished);
  EXPECT_THAT(replays, ::testing::ElementsAre(1, 2, 3));
  EXPECT_TRUE(client_.Ask<v1::StatusReply>(v1::StatusRequest()).ok());
}

TEST_F(ClientTest, StopEndsATailThatWaits) {
  Serve([](const v1::Request&) {
    FakeAnswer answer = ThreeEvents();
    answer.keep_open = true;
    return answer;
  });
  Connect();
  std::thread stopper;
  const Result<TailEnd> end = client_.Tail({}, [&](const v1::TailReply& event) {
    if (event.snapshot().replay() == 3) stopper = std::thread([&] { client_.Stop(); });
    return true;
  });
  stopper.join();
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, TailEnd::kStopped);
  EXPECT_TRUE(client_.Connect(Options()).ok()) << "a new connection forgets the stop";
}

TEST_F(ClientTest, CallbackEndsATail) {
  Serve([](const v1::Request&) { return ThreeEvents(); });
  Connect();
  int events = 0;
  const Result<TailEnd> end = client_.Tail({}, [&](const v1::TailReply&) { return ++events < 2; });
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, TailEnd::kStopped);
  EXPECT_EQ(events, 2);
}

TEST_F(ClientTest, ATailThatTheDaemonBreaksOffIsNotFinished) {
  Serve([](const v1::Request&) {
    FakeAnswer answer = ThreeEvents();
    answer.keep_open = true;
    answer.hang_up = true;
    return answer;
  });
  Connect();
  const Result<TailEnd> end = client_.Tail({}, [](const v1::TailReply&) { return true; });
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, TailEnd::kDaemonGone);
}

TEST_F(ClientTest, SilentDaemonIsATimeout) {
  Serve([](const v1::Request&) { return FakeAnswer{}; });
  ConnectOptions options = Options();
  options.timeout = std::chrono::milliseconds(30);
  // Hello is answered by the fake's thread, however late: a connection is not what is tested here.
  while (!client_.Connect(options).ok()) {
  }
  const Result<v1::StatusReply> reply = client_.Ask<v1::StatusReply>(v1::StatusRequest());
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(client_.last_failure(), Failure::kTimeout);
}

TEST_F(ClientTest, ALateAnswerIsNotTakenForThatOfTheNextRequest) {
  std::atomic<std::uint32_t> asked = 0;
  std::atomic<bool> is_late = true;
  Serve([&](const v1::Request&) {
    const std::uint32_t number = ++asked;
    while (is_late) std::this_thread::yield();
    FakeAnswer answer;
    answer.responses.emplace_back().mutable_status()->set_clients(number);
    return answer;
  });
  ConnectOptions options = Options();
  options.timeout = std::chrono::milliseconds(100);
  while (!client_.Connect(options).ok()) {
  }
  ASSERT_FALSE(client_.Ask<v1::StatusReply>(v1::StatusRequest()).ok());
  ASSERT_EQ(client_.last_failure(), Failure::kTimeout);
  is_late = false;
  std::uint32_t sent = 1;
  while (true) {  // on a slow machine the next one may be late as well
    const Result<v1::StatusReply> reply = client_.Ask<v1::StatusReply>(v1::StatusRequest());
    ++sent;
    if (!reply.ok() && client_.last_failure() == Failure::kTimeout) continue;
    ASSERT_TRUE(reply.ok()) << reply.error().message;
    EXPECT_EQ(reply->clients(), sent);
    break;
  }
}

TEST_F(ClientTest, AClientOfAnEndingDaemonAsksTheNextOne) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, Options().socket.c_str());
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 2), 0);
  std::thread daemons([&] {
    UniqueFd(::accept(listener.get(), nullptr, nullptr)).reset();  // it ends
    UniqueFd fd(::accept(listener.get(), nullptr, nullptr));
    if (!fd) return;
    wire::Channel channel(std::move(fd));
    wire::Frame frame;
    std::string error;
    EXPECT_EQ(channel.Read(&frame, wire::kNoDeadline, -1, &error), wire::ReadStatus::kFrame);
    v1::Response response;
    response.mutable_hello()->set_protocol(wire::kProtocol);
    const auto bytes =
        wire::EncodeMessage(wire::FrameKind::kResponse, 0, frame.header.request_id, response);
    EXPECT_TRUE(channel.Write(*bytes, wire::kNoDeadline).ok());
  });
  const Result<void> connected = client_.Connect(Options());
  EXPECT_TRUE(connected.ok()) << connected.error().message;
  ::shutdown(listener.get(), SHUT_RDWR);
  daemons.join();
}

// Of a daemon that greets and whose disk is slow.
class SlowDisk : public ClientTest {
 protected:
  std::size_t Greetings() const {
    const std::vector<v1::Request> requests = daemon_->requests();
    return std::ranges::count_if(requests, [](const v1::Request& one) { return one.has_hello(); });
  }
  void ConnectForMilliseconds(int timeout) {
    ConnectOptions options = Options();
    options.timeout = std::chrono::milliseconds(timeout);
    while (!client_.Connect(options).ok()) {
    }
  }
};

TEST_F(SlowDisk, WhatIsWrittenTakesAsLongAsItTakes) {
  std::size_t until = 0;
  Serve([&](const v1::Request& request) {
    while (Greetings() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    FakeAnswer answer;
    v1::Response& response = answer.responses.emplace_back();
    if (request.has_freeze()) response.mutable_freeze()->mutable_recording()->set_snapshots(7);
    if (request.has_record_start()) response.mutable_record_start()->mutable_recording()->set_id(8);
    if (request.has_record_stop()) response.mutable_record_stop()->add_recordings()->set_id(9);
    return answer;
  });
  ConnectForMilliseconds(500);
  until = Greetings() + 1;
  const auto frozen = client_.Ask<v1::FreezeReply>(v1::FreezeRequest());
  ASSERT_TRUE(frozen.ok()) << frozen.error().message;
  EXPECT_EQ(frozen->recording().snapshots(), 7u);
  until = Greetings() + 1;
  const auto started = client_.Ask<v1::RecordStartReply>(v1::RecordStartRequest());
  ASSERT_TRUE(started.ok()) << started.error().message;
  EXPECT_EQ(started->recording().id(), 8u);
  until = Greetings() + 1;
  const auto stopped = client_.Ask<v1::RecordStopReply>(v1::RecordStopRequest());
  ASSERT_TRUE(stopped.ok()) << stopped.error().message;
  EXPECT_EQ(stopped->recordings(0).id(), 9u);
}

TEST_F(SlowDisk, IsNotWaitedForUnderADaemonThatGreetsNobody) {
  Serve([](const v1::Request&) { return FakeAnswer{}; });
  ConnectForMilliseconds(30);
  daemon_->set_protocol(7);
  EXPECT_FALSE(client_.Ask<v1::RecordStopReply>(v1::RecordStopRequest()).ok());
  EXPECT_EQ(client_.last_failure(), Failure::kTimeout);
}

TEST_F(ClientTest, RequestWithoutAConnectionIsAnErrorNotACrash) {
  EXPECT_FALSE(client_.Ask<v1::StatusReply>(v1::StatusRequest()).ok());
  EXPECT_FALSE(client_.Tail({}, [](const v1::TailReply&) { return true; }).ok());
}

}  // namespace
}  // namespace cgdebug::client
