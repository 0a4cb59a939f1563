#include "daemon/core/wire/channel.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <thread>

#include "daemon/core/endpoint/endpoint.h"
#include "daemon/core/wire/async_frame.h"
#include "proto/control.pb.h"

namespace cgdebug::wire {
namespace {

class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    channel_ = std::make_unique<Channel>(UniqueFd(fds[0]));
    peer_.reset(fds[1]);
  }
  static std::string Message(const std::string& text, std::uint64_t id) {
    v1::Response response;
    response.mutable_error()->set_message(text);
    return *EncodeMessage(FrameKind::kResponse, 0, id, response);
  }
  void PeerSends(std::string_view bytes) {
    ASSERT_EQ(::send(peer_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  ReadStatus Read(Deadline deadline = kNoDeadline, int stop_fd = -1) {
    return channel_->Read(&frame_, deadline, stop_fd, &error_);
  }

  std::unique_ptr<Channel> channel_;
  UniqueFd peer_;
  Frame frame_;
  std::string error_;
};

TEST_F(ChannelTest, ReadsFramesThatCameTogether) {
  PeerSends(Message("one", 1) + Message("two", 2));
  ASSERT_EQ(Read(), ReadStatus::kFrame);
  EXPECT_EQ(frame_.header.request_id, 1u);
  ASSERT_EQ(Read(), ReadStatus::kFrame);
  EXPECT_EQ(frame_.header.request_id, 2u);
}

TEST_F(ChannelTest, TimeoutInsideAFrameLosesNoByte) {
  const std::string bytes = Message("a body in two halves", 5);
  for (const std::size_t cut : {std::size_t{3}, kHeaderBytes, bytes.size() - 1}) {
    PeerSends(bytes.substr(0, cut));
    EXPECT_EQ(Read(std::chrono::steady_clock::now()), ReadStatus::kTimeout);
    EXPECT_EQ(Read(std::chrono::steady_clock::now() + std::chrono::milliseconds(1)),
              ReadStatus::kTimeout);
    PeerSends(bytes.substr(cut));
    ASSERT_EQ(Read(), ReadStatus::kFrame);
    v1::Response got;
    ASSERT_TRUE(DecodeMessage(frame_, FrameKind::kResponse, &got).ok());
    EXPECT_EQ(got.error().message(), "a body in two halves");
  }
}

TEST_F(ChannelTest, StopEndsAWaitWithoutADeadline) {
  const UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  std::thread stopper([&] { ::eventfd_write(stop.get(), 1); });
  EXPECT_EQ(Read(kNoDeadline, stop.get()), ReadStatus::kStopped);
  stopper.join();
}

TEST_F(ChannelTest, StopIsHeardAlsoWhereFramesKeepComing) {
  const UniqueFd stop(::eventfd(1, EFD_CLOEXEC));
  PeerSends(Message("one", 1) + Message("two", 2));
  EXPECT_EQ(Read(kNoDeadline, stop.get()), ReadStatus::kStopped);
}

TEST_F(ChannelTest, ClosingBetweenFramesIsNotAnErrorAndInsideOneItIs) {
  PeerSends(Message("last", 1));
  ASSERT_EQ(Read(), ReadStatus::kFrame);
  PeerSends("\x05");
  peer_.reset();
  EXPECT_EQ(Read(), ReadStatus::kError);
  EXPECT_NE(error_.find("middle of an answer"), std::string::npos) << error_;

  SetUp();
  peer_.reset();
  EXPECT_EQ(Read(), ReadStatus::kClosed);
}

TEST_F(ChannelTest, RefusesAHugeLengthFromItsHeaderAlone) {
  const auto header = EncodeHeader({0xffffffff, FrameKind::kResponse, 0, 1});
  PeerSends({reinterpret_cast<const char*>(header.data()), header.size()});
  EXPECT_EQ(Read(), ReadStatus::kError);
}

TEST_F(ChannelTest, WriteToAPeerThatReadsNothingEndsAtTheDeadline) {
  const std::string bytes(8u << 20, 'x');
  EXPECT_FALSE(channel_->Write(bytes, std::chrono::steady_clock::now()).ok());
}

TEST_F(ChannelTest, WriteToAClosedPeerFailsWithoutASignal) {
  peer_.reset();
  EXPECT_FALSE(channel_->Write("hello", kNoDeadline).ok());
}

TEST_F(ChannelTest, PeerOfTheSameUserIsAccepted) {
  const Result<Peer> peer = CheckPeer(peer_.get());
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->pid, ::getpid());
}

using LocalSocket = boost::asio::local::stream_protocol::socket;

class AsyncReaderTest : public ChannelTest {
 protected:
  void SetUp() override {
    ChannelTest::SetUp();
    socket_.assign(boost::asio::local::stream_protocol(), peer_.release());
  }
  void ReadOnce(std::uint32_t max_body_bytes = kMaxMessageBytes) {
    reader_ = AsyncFrameReader(max_body_bytes);
    reader_.Read(socket_, [this](bool ok, std::string why) {
      ok_ = ok;
      why_ = std::move(why);
      ++calls_;
    });
    io_.run();
    io_.restart();
  }

  boost::asio::io_context io_;
  LocalSocket socket_{io_};
  AsyncFrameReader reader_;
  bool ok_ = false;
  std::string why_;
  int calls_ = 0;
};

TEST_F(AsyncReaderTest, ReadsWhatAClientWrote) {
  ASSERT_TRUE(channel_->Write(Message("hello", 4), kNoDeadline).ok());
  ReadOnce();
  EXPECT_TRUE(ok_);
  EXPECT_EQ(reader_.frame().header.request_id, 4u);
  EXPECT_EQ(reader_.frame().body.size(), reader_.frame().header.body_bytes);
  EXPECT_EQ(calls_, 1);
}

TEST_F(AsyncReaderTest, TellsACleanCloseFromABrokenOne) {
  channel_.reset();
  ReadOnce();
  EXPECT_FALSE(ok_);
  EXPECT_EQ(why_, "");
}

TEST_F(AsyncReaderTest, NamesACloseInsideAFrame) {
  ASSERT_TRUE(channel_->Write("abc", kNoDeadline).ok());
  channel_.reset();
  ReadOnce();
  EXPECT_FALSE(ok_);
  EXPECT_NE(why_, "");
}

TEST_F(AsyncReaderTest, RefusesABodyAboveItsOwnLimit) {
  ASSERT_TRUE(channel_->Write(Message(std::string(2000, 'x'), 1), kNoDeadline).ok());
  ReadOnce(/*max_body_bytes=*/1000);
  EXPECT_FALSE(ok_);
  EXPECT_NE(why_.find("at most 1000"), std::string::npos) << why_;
}

}  // namespace
}  // namespace cgdebug::wire
