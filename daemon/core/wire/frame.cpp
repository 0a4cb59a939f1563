#include "daemon/core/wire/frame.h"

#include <algorithm>
#include <concepts>

namespace cgdebug::wire {
namespace {

template <std::unsigned_integral T>
void PutLittle(T value, std::byte* out) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T GetLittle(const std::byte* in) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(in[i]) << (8 * i)));
  }
  return value;
}

// 0 for a kind that does not exist.
std::uint32_t LimitOf(std::uint16_t kind) {
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kRequest:
    case FrameKind::kResponse:
      return kMaxMessageBytes;
    case FrameKind::kPayload:
      return kMaxPayloadFrameBytes;
  }
  return 0;
}

}  // namespace

std::array<std::byte, kHeaderBytes> EncodeHeader(const FrameHeader& header) {
  std::array<std::byte, kHeaderBytes> bytes;
  PutLittle(header.body_bytes, &bytes[0]);
  PutLittle(static_cast<std::uint16_t>(header.kind), &bytes[4]);
  PutLittle(header.flags, &bytes[6]);
  PutLittle(header.request_id, &bytes[8]);
  return bytes;
}

Result<FrameHeader> ParseHeader(std::span<const std::byte, kHeaderBytes> bytes_untrusted) {
  const auto body_bytes = GetLittle<std::uint32_t>(&bytes_untrusted[0]);
  const auto kind = GetLittle<std::uint16_t>(&bytes_untrusted[4]);
  const std::uint32_t limit_bytes = LimitOf(kind);
  if (limit_bytes == 0) {
    return Error{"the other end does not speak cgdebug's protocol: frame of kind " +
                 std::to_string(kind)};
  }
  if (body_bytes > limit_bytes) {
    return Error{"a frame of " + std::to_string(body_bytes) + " bytes, at most " +
                 std::to_string(limit_bytes) + " are allowed"};
  }
  FrameHeader header;
  header.body_bytes = body_bytes;
  header.kind = static_cast<FrameKind>(kind);
  header.flags = GetLittle<std::uint16_t>(&bytes_untrusted[6]);
  header.request_id = GetLittle<std::uint64_t>(&bytes_untrusted[8]);
  return header;
}

Result<std::string> EncodeMessage(FrameKind kind, std::uint16_t flags, std::uint64_t request_id,
                                  const google::protobuf::MessageLite& message) {
  return EncodeBody(kind, flags, request_id, message.SerializeAsString());
}

Result<std::string> EncodeBody(FrameKind kind, std::uint16_t flags, std::uint64_t request_id,
                               std::string_view body) {
  if (body.size() > kMaxMessageBytes) {
    const std::string what = kind == FrameKind::kRequest ? "Request" : "Response";
    return Error{"cgdebug.v1." + what + " has " + std::to_string(body.size()) + " bytes, at most " +
                 std::to_string(kMaxMessageBytes) + " are allowed; ask for fewer probes"};
  }
  const FrameHeader header{static_cast<std::uint32_t>(body.size()), kind, flags, request_id};
  const auto header_bytes = EncodeHeader(header);
  std::string frame(reinterpret_cast<const char*>(header_bytes.data()), header_bytes.size());
  frame += body;
  return frame;
}

Result<void> DecodeMessage(const Frame& frame, FrameKind expected,
                           google::protobuf::MessageLite* message) {
  if (frame.header.kind != expected) {
    return Error{"expected " + message->GetTypeName() + ", got a frame of kind " +
                 std::to_string(static_cast<int>(frame.header.kind))};
  }
  if (!message->ParseFromString(frame.body)) {
    return Error{"the body of a frame is not a " + message->GetTypeName()};
  }
  return {};
}

bool PayloadHeaders::Next(FrameHeader* header) {
  if (left_bytes_ == 0) return false;
  const std::uint64_t now_bytes = std::min<std::uint64_t>(left_bytes_, kMaxPayloadFrameBytes);
  left_bytes_ -= now_bytes;
  header->body_bytes = static_cast<std::uint32_t>(now_bytes);
  header->kind = FrameKind::kPayload;
  header->flags = left_bytes_ > 0 ? kFlagMore : 0;
  header->request_id = request_id_;
  return true;
}

}  // namespace cgdebug::wire
