// Requests of clients, and attacks of hostile ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/wire/channel.h"
#include "daemon/core/wire/frame.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DaemonRpcTest : public testing::Test {
 protected:
  wire::Channel RawChannel(const DaemonProcess& daemon) {
    auto fd = wire::TryConnect(daemon.socket());
    if (!fd.ok() || !*fd) throw std::runtime_error("cannot connect");
    return wire::Channel(*std::move(fd));
  }
  wire::Deadline Soon() { return std::chrono::steady_clock::now() + kDeadline; }

  void SendRequest(wire::Channel& channel, std::uint64_t id, const v1::Request& request) {
    const auto frame = wire::EncodeMessage(wire::FrameKind::kRequest, 0, id, request);
    ASSERT_TRUE(frame.ok());
    ASSERT_TRUE(channel.Write(*frame, Soon()).ok());
  }
  void Greet(wire::Channel& channel) {
    v1::Request hello;
    hello.mutable_hello()->set_protocol(wire::kProtocol);
    SendRequest(channel, 1, hello);
    EXPECT_TRUE(ReadResponse(channel).has_hello());
  }
  v1::Response ReadResponse(wire::Channel& channel, wire::FrameHeader* header = nullptr) {
    wire::Frame frame;
    std::string error;
    v1::Response response;
    const wire::ReadStatus status = channel.Read(&frame, Soon(), -1, &error);
    EXPECT_EQ(status, wire::ReadStatus::kFrame) << error;
    if (status == wire::ReadStatus::kFrame) {
      EXPECT_TRUE(wire::DecodeMessage(frame, wire::FrameKind::kResponse, &response).ok());
    }
    if (header != nullptr) *header = frame.header;
    return response;
  }
  // The daemon closes, with or without a last word.
  bool Closes(wire::Channel& channel) {
    wire::Frame frame;
    std::string error;
    while (true) {
      switch (channel.Read(&frame, Soon(), -1, &error)) {
        case wire::ReadStatus::kFrame:
          continue;
        case wire::ReadStatus::kTimeout:
          return false;
        default:
          return true;
      }
    }
  }

  testing_support::TempDir directory_;
};

// For a job that runs and for a dead one.
TEST_F(DaemonRpcTest, TheFirstAnswerKnowsAllThatWasThereBefore) {
  std::vector<SlotSpec> slots;
  for (int i = 0; i < 200; ++i) slots.push_back(Recording("p" + std::to_string(i), 4));
  ProducerProcess alive(slots), dead(slots);
  dead.Write(199, 3);
  dead.Kill();
  DaemonProcess daemon(directory_);
  EXPECT_TRUE(daemon.Probe(alive.key(), "p199").has_value());
  const auto probe = daemon.Probe(dead.key(), "p199");
  ASSERT_TRUE(probe.has_value());
  EXPECT_EQ(probe->counters().consumed(), 3u);
}

TEST_F(DaemonRpcTest, RefusesAnotherProtocolAndNamesBoth) {
  DaemonProcess daemon(directory_);
  wire::Channel channel = RawChannel(daemon);
  v1::Request hello;
  hello.mutable_hello()->set_protocol(77);
  hello.mutable_hello()->set_client("someone");
  hello.mutable_hello()->set_version("9.9");
  SendRequest(channel, 5, hello);
  wire::FrameHeader header;
  const v1::Response response = ReadResponse(channel, &header);
  EXPECT_EQ(header.request_id, 5u);
  EXPECT_EQ(response.error().code(), v1::Error::VERSION);
  EXPECT_THAT(response.error().message(), HasSubstr("someone 9.9"));
  EXPECT_THAT(response.error().message(), HasSubstr("speaks protocol 77"));
  EXPECT_THAT(response.error().message(),
              HasSubstr("speaks protocol " + std::to_string(wire::kProtocol)));
  EXPECT_TRUE(Closes(channel));
}

TEST_F(DaemonRpcTest, WantsHelloFirst) {
  DaemonProcess daemon(directory_);
  wire::Channel channel = RawChannel(daemon);
  v1::Request request;
  request.mutable_status();
  SendRequest(channel, 1, request);
  EXPECT_EQ(ReadResponse(channel).error().code(), v1::Error::BAD_REQUEST);
  EXPECT_TRUE(Closes(channel));
}

TEST_F(DaemonRpcTest, ClosesOnAHugeLengthAndOnGarbageAndLivesOn) {
  DaemonProcess daemon(directory_);
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    wire::Channel channel = RawChannel(daemon);
    std::string bytes;
    if (round % 4 == 0) {
      wire::FrameHeader header;
      header.body_bytes = 0xffffffff;
      const auto encoded = wire::EncodeHeader(header);
      bytes.assign(reinterpret_cast<const char*>(encoded.data()), encoded.size());
    } else if (round % 4 == 1) {
      // A well-formed frame with rubbish in it.
      wire::FrameHeader header;
      header.body_bytes = 64;
      const auto encoded = wire::EncodeHeader(header);
      bytes.assign(reinterpret_cast<const char*>(encoded.data()), encoded.size());
      for (int i = 0; i < 64; ++i) bytes += static_cast<char>(random());
      bytes[16] = '\xff';  // no protobuf starts with a tag of wire type 7
    } else {
      for (int i = 0; i < 256; ++i) bytes += static_cast<char>(random());
      bytes[4] = '\x2a';  // a kind that does not exist
    }
    ASSERT_TRUE(channel.Write(bytes, Soon()).ok());
    EXPECT_TRUE(Closes(channel)) << "round " << round;
  }
  EXPECT_EQ(daemon.Status().pid(), daemon.pid());
}

TEST_F(DaemonRpcTest, AnswersOneClientTooManyWithTheReason) {
  DaemonProcess daemon(directory_, {"--max-clients", "2"});
  ASSERT_TRUE(WaitUntil([&] { return daemon.Status().clients() == 1; }));
  client::Client first = daemon.Connect();
  client::Client second = daemon.Connect();
  client::Client third;
  const auto refused = third.Connect({daemon.socket(), false, "test"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--max-clients"));
  EXPECT_EQ(first.Ask<v1::StatusReply>(v1::StatusRequest())->clients(), 2u);
}

TEST_F(DaemonRpcTest, AClientThatIsRefusedTakesNobodysPlace) {
  DaemonProcess daemon(directory_, {"--max-clients", "2"});
  ASSERT_TRUE(WaitUntil([&] { return daemon.Status().clients() == 1; }));
  client::Client first = daemon.Connect();
  std::optional<client::Client> second = daemon.Connect();
  const wire::Channel silent = RawChannel(daemon);  // is there, and asks nothing
  ASSERT_EQ(first.Ask<v1::StatusReply>(v1::StatusRequest())->clients(),
            2u);  // by now it was accepted
  second.reset();
  ASSERT_TRUE(
      WaitUntil([&] { return first.Ask<v1::StatusReply>(v1::StatusRequest())->clients() == 1; }));
  client::Client next;
  EXPECT_TRUE(next.Connect({daemon.socket(), false, "test"}).ok());
}

TEST_F(DaemonRpcTest, FindsASessionByEveryNameItHas) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("a")}, -1, "my-run");
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 1));
  client::Client client = daemon.Connect();
  const std::string uuid = job.segment().substr(job.segment().size() - 32);
  for (const std::string& name : {job.key(), uuid.substr(0, 5), uuid, std::string("my-run"),
                                  std::to_string(job.pid()), std::string()}) {
    v1::StatusRequest request;
    request.set_session(name);
    const auto status = client.Ask<v1::StatusReply>(request);
    ASSERT_TRUE(status.ok()) << name << ": " << status.error().message;
    EXPECT_EQ(status->sessions_size(), 1) << name;
  }
  v1::StatusRequest request;
  request.set_session("my-rum");
  EXPECT_FALSE(client.Ask<v1::StatusReply>(request).ok());
  EXPECT_EQ(client.last_error().code(), v1::Error::NO_SESSION);
  EXPECT_THAT(client.last_error().close(), ElementsAre("my-run"));
}

TEST_F(DaemonRpcTest, SelectsProbesByGlobAndSuggestsNamesThatAreClose) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("blk0.attn"), Recording("blk0.mlp"), Recording("head")});
  for (std::uint32_t slot : {0, 1, 2}) job.Write(slot, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "head", 1));
  client::Client client = daemon.Connect();
  v1::ProbesRequest request;
  request.add_probes("blk*");
  request.add_probes("!*.mlp");
  auto probes = client.Ask<v1::ProbesReply>(request);
  ASSERT_TRUE(probes.ok());
  ASSERT_EQ(probes->probes_size(), 1);
  EXPECT_EQ(probes->probes(0).name(), "blk0.attn");
  EXPECT_EQ(probes->probes(0).dtype(), "float32");
  EXPECT_TRUE(probes->probes(0).has_last_stats());

  request.clear_probes();
  request.add_probes("blk0.atn");
  EXPECT_FALSE(client.Ask<v1::ProbesReply>(request).ok());
  EXPECT_EQ(client.last_error().code(), v1::Error::NO_PROBE);
  EXPECT_THAT(client.last_error().close(), testing::Contains("blk0.attn"));

  v1::GetRequest get;
  get.set_probe("hed");
  EXPECT_FALSE(client.Get(get).ok());
  EXPECT_THAT(client.last_error().close(), testing::Contains("head"));
  get.set_probe("head");
  get.set_replay(9);
  EXPECT_FALSE(client.Get(get).ok());
  EXPECT_EQ(client.last_error().code(), v1::Error::NO_SNAPSHOT);
  EXPECT_THAT(client.last_error().message(), HasSubstr("replays 1 to 1"));
}

TEST_F(DaemonRpcTest, SendsATensorLargerThanOneFrame) {
  DaemonProcess daemon(directory_);
  SlotSpec spec = Recording("big", 2);
  spec.elements = (9u << 20) / sizeof(float) + 3;
  ProducerProcess job({spec});
  job.WriteValue(0, 2.5f);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "big", 1));
  const client::Tensor tensor = daemon.Get(job.key(), "big");
  ASSERT_EQ(tensor.payload.size(), spec.elements * sizeof(float));
  float last = 0;
  std::memcpy(&last, tensor.payload.data() + tensor.payload.size() - sizeof(last), sizeof(last));
  EXPECT_EQ(last, 2.5f);
  client::Client client = daemon.Connect();
  v1::GetRequest get;
  get.set_probe("big");
  for (int i = 0; i < 3; ++i) {  // one after the other on one connection
    const auto again = client.Get(get);
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(again->payload, tensor.payload);
  }
  get.set_metadata_only(true);
  const auto metadata = client.Get(get);
  ASSERT_TRUE(metadata.ok());
  EXPECT_EQ(metadata->payload, "");
  EXPECT_EQ(metadata->reply.snapshot().stats().mean(), 2.5);
}

TEST_F(DaemonRpcTest, ASlowClientIsToldExactlyWhatItMissedAndHoldsNobodyUp) {
  DaemonProcess daemon(directory_);
  constexpr std::uint64_t kReplays = 60'000;
  SlotSpec spec = Recording("a", 4096);
  spec.policy = layout::Policy::kWait;  // so that the ring loses nothing
  spec.wait_deadline_ms = 600'000;
  ProducerProcess job({spec});
  // A job waits only for a daemon that reads it.
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key()).has_value(); }));
  wire::Channel slow = RawChannel(daemon);
  Greet(slow);
  v1::Request request;
  request.mutable_tail()->set_follow(true);
  request.mutable_tail()->set_until_exit(true);
  SendRequest(slow, 2, request);
  EXPECT_TRUE(ReadResponse(slow).tail().caught_up());
  job.Write(0, kReplays);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", kReplays));
  job.Kill();
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key())->state() == v1::Session::DIED; }));
  std::uint64_t snapshots = 0;
  std::uint64_t missed = 0;
  wire::FrameHeader header;
  do {
    const v1::Response response = ReadResponse(slow, &header);
    ASSERT_FALSE(HasFailure());
    snapshots += response.tail().has_snapshot();
    missed += response.tail().has_loss() ? response.tail().loss().count() : 0;
  } while (header.more());
  EXPECT_GT(missed, 0u);
  // The end of the job is an event too, which may be among the missed.
  EXPECT_GE(snapshots + missed, kReplays);
  EXPECT_LE(snapshots + missed, kReplays + 1);
}

TEST_F(DaemonRpcTest, DoesNotEndForAClientWhileAJobIsAliveUnlessForced) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("a")});
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key()).has_value(); }));
  client::Client client = daemon.Connect();
  v1::ShutdownRequest request;
  const auto refused = client.Ask<v1::ShutdownReply>(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--force"));
  request.set_force(true);
  EXPECT_TRUE(client.Ask<v1::ShutdownReply>(request).ok());
  EXPECT_EQ(daemon.WaitForExit(), 0);
}

TEST_F(DaemonRpcTest, AnswersWhileATailIsOpenOnTheSameConnection) {
  DaemonProcess daemon(directory_);
  wire::Channel channel = RawChannel(daemon);
  Greet(channel);
  v1::Request tail;
  tail.mutable_tail()->set_follow(true);
  SendRequest(channel, 2, tail);
  EXPECT_TRUE(ReadResponse(channel).tail().caught_up());
  v1::Request status;
  status.mutable_status();
  SendRequest(channel, 3, status);
  wire::FrameHeader header;
  EXPECT_TRUE(ReadResponse(channel, &header).has_status());
  EXPECT_EQ(header.request_id, 3u);
}

TEST_F(DaemonRpcTest, RefusesTheSeventeenthTailOfAConnectionAndASecondOfOneName) {
  DaemonProcess daemon(directory_);
  wire::Channel channel = RawChannel(daemon);
  Greet(channel);
  v1::Request request;
  request.mutable_tail()->set_follow(true);
  for (std::uint64_t id = 2; id < 18; ++id) {
    SendRequest(channel, id, request);
    EXPECT_TRUE(ReadResponse(channel).tail().caught_up()) << id;
    if (id > 2) continue;
    SendRequest(channel, id, request);  // while there is room for others
    EXPECT_EQ(ReadResponse(channel).error().code(), v1::Error::BAD_REQUEST);
  }
  for (const std::uint64_t id : {18, 2}) {
    SendRequest(channel, id, request);
    wire::FrameHeader header;
    EXPECT_EQ(ReadResponse(channel, &header).error().code(), v1::Error::BAD_REQUEST) << id;
    EXPECT_EQ(header.request_id, id);
  }
}

TEST_F(DaemonRpcTest, AnotherUserGetsNoAnswer) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  DaemonProcess daemon(directory_);
  const std::filesystem::path socket_path = daemon.socket();
  ASSERT_EQ(chmod(socket_path.parent_path().c_str(), 0777), 0);
  ASSERT_EQ(chmod(socket_path.c_str(), 0777), 0);
  const auto ask = [&](uid_t uid) {
    return InChild([&] {
      if (chdir(socket_path.parent_path().c_str()) != 0) return 10;
      if (setresuid(uid, uid, uid) != 0) return 11;
      signal(SIGPIPE, SIG_IGN);
      UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      std::strcpy(address.sun_path, socket_path.filename().c_str());
      if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return 12;
      wire::Channel channel(std::move(fd));
      v1::Request hello;
      hello.mutable_hello()->set_protocol(wire::kProtocol);
      const auto frame = wire::EncodeMessage(wire::FrameKind::kRequest, 0, 1, hello);
      (void)channel.Write(*frame, Soon()).ok();
      wire::Frame answer;
      std::string error;
      return static_cast<int>(channel.Read(&answer, Soon(), -1, &error));
    });
  };
  EXPECT_EQ(ask(0), static_cast<int>(wire::ReadStatus::kFrame));
  const int refused = ask(65534);
  EXPECT_LT(refused, 10);
  EXPECT_NE(refused, static_cast<int>(wire::ReadStatus::kFrame));
  EXPECT_NE(refused, static_cast<int>(wire::ReadStatus::kTimeout));
}

}  // namespace
}  // namespace cgdebug::test
