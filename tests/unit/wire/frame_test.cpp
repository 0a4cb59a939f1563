#include "daemon/core/wire/frame.h"

#include <gtest/gtest.h>

#include <cstring>

#include "proto/control.pb.h"

namespace cgdebug::wire {
namespace {

std::array<std::byte, kHeaderBytes> Bytes(std::uint32_t body_bytes, std::uint16_t kind) {
  return EncodeHeader({body_bytes, static_cast<FrameKind>(kind), 0, 7});
}

TEST(Frame, HeaderBytesAreFrozen) {
  const auto bytes = EncodeHeader({0x01020304, FrameKind::kPayload, kFlagMore, 0x1112131415161718});
  const unsigned char expected[] = {0x04, 0x03, 0x02, 0x01, 0x03, 0x00, 0x01, 0x00,
                                    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof(expected)), 0);
}

TEST(Frame, HeaderSurvivesTheTrip) {
  const FrameHeader sent{12345, FrameKind::kResponse, kFlagMore, 1ull << 63};
  const Result<FrameHeader> got = ParseHeader(EncodeHeader(sent));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->body_bytes, sent.body_bytes);
  EXPECT_EQ(got->kind, sent.kind);
  EXPECT_TRUE(got->more());
  EXPECT_EQ(got->request_id, sent.request_id);
}

TEST(Frame, RefusesLengthsAboveTheLimitOfTheirKind) {
  EXPECT_TRUE(ParseHeader(Bytes(kMaxMessageBytes, 1)).ok());
  EXPECT_FALSE(ParseHeader(Bytes(kMaxMessageBytes + 1, 1)).ok());
  EXPECT_FALSE(ParseHeader(Bytes(0xffffffff, 2)).ok());
  EXPECT_TRUE(ParseHeader(Bytes(kMaxPayloadFrameBytes, 3)).ok());
  EXPECT_FALSE(ParseHeader(Bytes(kMaxPayloadFrameBytes + 1, 3)).ok());
}

TEST(Frame, RefusesKindsThatDoNotExist) {
  for (const int kind : {0, 4, 0x4547, 0xffff}) {
    EXPECT_FALSE(ParseHeader(Bytes(0, static_cast<std::uint16_t>(kind))).ok()) << kind;
  }
}

TEST(Frame, IgnoresFlagsOfALaterVersion) {
  auto bytes = Bytes(0, 2);
  bytes[7] = std::byte{0x80};
  EXPECT_TRUE(ParseHeader(bytes).ok());
}

TEST(Frame, MessageSurvivesTheTrip) {
  v1::Request request;
  request.mutable_get()->set_probe("blk3.attn");
  request.mutable_get()->set_replay(-1);
  const Result<std::string> bytes = EncodeMessage(FrameKind::kRequest, 0, 9, request);
  ASSERT_TRUE(bytes.ok());
  ASSERT_GE(bytes->size(), kHeaderBytes);
  Frame frame{*ParseHeader(std::span<const std::byte, kHeaderBytes>(
                  reinterpret_cast<const std::byte*>(bytes->data()), kHeaderBytes)),
              bytes->substr(kHeaderBytes)};
  EXPECT_EQ(frame.header.body_bytes, frame.body.size());
  v1::Request got;
  ASSERT_TRUE(DecodeMessage(frame, FrameKind::kRequest, &got).ok());
  EXPECT_EQ(got.get().probe(), "blk3.attn");
  EXPECT_EQ(got.get().replay(), -1);

  v1::Response wrong;
  EXPECT_FALSE(DecodeMessage(frame, FrameKind::kResponse, &wrong).ok());
  frame.body = "\xff\xff\xff";
  EXPECT_FALSE(DecodeMessage(frame, FrameKind::kRequest, &got).ok());
}

TEST(Frame, RefusesToEncodeAMessageNobodyMayReceive) {
  v1::Response response;
  response.mutable_error()->set_message(std::string(kMaxMessageBytes, 'x'));
  EXPECT_FALSE(EncodeMessage(FrameKind::kResponse, 0, 1, response).ok());
}

TEST(PayloadHeaders, CoverEveryByteOnceAndOnlyTheLastHasNoMore) {
  const std::uint64_t payload_bytes = 2ull * kMaxPayloadFrameBytes + 5;
  PayloadHeaders headers(3, payload_bytes);
  std::vector<FrameHeader> all;
  FrameHeader header;
  while (headers.Next(&header)) all.push_back(header);
  ASSERT_EQ(all.size(), 3u);
  std::uint64_t sum_bytes = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    sum_bytes += all[i].body_bytes;
    EXPECT_EQ(all[i].more(), i + 1 < all.size());
    EXPECT_TRUE(ParseHeader(EncodeHeader(all[i])).ok());
  }
  EXPECT_EQ(sum_bytes, payload_bytes);
}

TEST(PayloadHeaders, EmptyTensorHasNone) {
  FrameHeader header;
  EXPECT_FALSE(PayloadHeaders(1, 0).Next(&header));
}

}  // namespace
}  // namespace cgdebug::wire
