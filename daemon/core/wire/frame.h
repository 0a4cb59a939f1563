// frame.h: how a message travels between cgdebug-daemon and its clients.
//
//   frame := u32 body_bytes | u16 kind | u16 flags | u64 request_id | body      (little-endian)
//
// A body is a serialized Request or Response (proto/control.proto), or raw tensor bytes. A length
// is checked against the limit of its kind before anything is allocated, so a stranger that writes
// rubbish into the socket costs 16 bytes.
#pragma once

#include <google/protobuf/message_lite.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "daemon/core/base/result.h"

namespace cgdebug::wire {

inline constexpr std::size_t kHeaderBytes = 16;
inline constexpr std::uint32_t kMaxMessageBytes = 16u << 20;
inline constexpr std::uint32_t kMaxPayloadFrameBytes = 4u << 20;

enum class FrameKind : std::uint16_t { kRequest = 1, kResponse = 2, kPayload = 3 };

// On a Response or payload frame: more frames of the same request follow.
inline constexpr std::uint16_t kFlagMore = 1u << 0;

struct FrameHeader {
  std::uint32_t body_bytes = 0;
  FrameKind kind = FrameKind::kRequest;
  std::uint16_t flags = 0;  // bits that this version does not know are ignored
  std::uint64_t request_id = 0;

  bool more() const { return (flags & kFlagMore) != 0; }
};

struct Frame {
  FrameHeader header;
  std::string body;
};

std::array<std::byte, kHeaderBytes> EncodeHeader(const FrameHeader& header);

// Fails: an unknown kind, or a length above the limit of its kind. The connection is unusable then,
//        because nothing says where the next frame begins.
Result<FrameHeader> ParseHeader(std::span<const std::byte, kHeaderBytes> bytes_untrusted);

// Header and body of one message, ready to write.
// Fails: the message is larger than kMaxMessageBytes.
Result<std::string> EncodeMessage(FrameKind kind, std::uint16_t flags, std::uint64_t request_id,
                                  const google::protobuf::MessageLite& message);

// The same of a body that is encoded already.
Result<std::string> EncodeBody(FrameKind kind, std::uint16_t flags, std::uint64_t request_id,
                               std::string_view body);

// Fails: the frame is of another kind, or its body is not a message of this type.
Result<void> DecodeMessage(const Frame& frame, FrameKind expected,
                           google::protobuf::MessageLite* message);

// The headers of the frames that carry `payload_bytes` of one tensor, in order. All but the last
// are kMaxPayloadFrameBytes long and have kFlagMore. An empty tensor has none.
class PayloadHeaders {
 public:
  PayloadHeaders(std::uint64_t request_id, std::uint64_t payload_bytes)
      : request_id_(request_id), left_bytes_(payload_bytes) {}

  // False if there is no further frame.
  bool Next(FrameHeader* header);

 private:
  std::uint64_t request_id_;
  std::uint64_t left_bytes_;
};

}  // namespace cgdebug::wire
