// Takes any bytes for what comes over the socket: frames, one after the other, and the requests in
// them.
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "daemon/core/wire/frame.h"
#include "proto/control.pb.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // a line for each string that is not UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cgdebug;
  std::span<const std::byte> left = std::as_bytes(std::span(data, size));
  v1::Request request;
  v1::Response response;
  while (left.size() >= wire::kHeaderBytes) {
    const auto bytes = left.first<wire::kHeaderBytes>();
    const auto header = wire::ParseHeader(bytes);
    if (!header.ok()) return 0;
    if (header->body_bytes > wire::kMaxMessageBytes) std::abort();
    // A header that was parsed can be encoded again.
    const auto again = wire::EncodeHeader(*header);
    if (std::memcmp(again.data(), bytes.data(), bytes.size()) != 0) std::abort();
    left = left.subspan(wire::kHeaderBytes);
    if (left.size() < header->body_bytes) return 0;
    const wire::Frame frame{
        *header, std::string(reinterpret_cast<const char*>(left.data()), header->body_bytes)};
    left = left.subspan(header->body_bytes);
    if (wire::DecodeMessage(frame, wire::FrameKind::kRequest, &request).ok()) {
      const auto encoded =
          wire::EncodeMessage(wire::FrameKind::kRequest, 0, header->request_id, request);
      if (!encoded.ok()) std::abort();
    }
    (void)wire::DecodeMessage(frame, wire::FrameKind::kResponse, &response);
  }
  return 0;
}
