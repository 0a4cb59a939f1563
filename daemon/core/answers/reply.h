// reply.h: what answers a request, as bytes: the Response of proto/control.proto.
//
//   std::string body = EncodeReply(Sessions{sessions});               the daemon
//   std::optional<Sessions> sessions = DecodeReply<Sessions>(body);   a client
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/answers/probe.h"
#include "daemon/core/answers/session.h"
#include "daemon/core/answers/status.h"
#include "daemon/core/base/field_codec.h"

namespace cgdebug::answers {

// A message whose field 1 is one thing, or a list of one kind. `number`: of its field in Response.
template <std::uint32_t number, typename T>
struct Reply {
  static constexpr std::uint32_t kNumber = number;
  T value;

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, ""}, self.value);
  }
};

// One part of a list that is too long for one answer.
template <std::uint32_t number, typename T>
struct Part {
  static constexpr std::uint32_t kNumber = number;
  std::vector<T> items;
  bool more = false;  // ask again, for what comes after the last one

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, ""}, self.items);
    visit(layout::Field{2, ""}, self.more);
  }
};

using Sessions = Reply<3, std::vector<Session>>;
using Probes = Part<4, Probe>;
using RecordStarted = Reply<10, Recording>;
using RecordStopped = Reply<11, std::vector<Recording>>;
using Recordings = Reply<12, std::vector<Recording>>;
using Frozen = Reply<13, Recording>;
using History = Part<16, Kept>;
using Graphs = Reply<17, std::vector<SessionGraphs>>;
using OpLogs = Reply<18, std::vector<OpLog>>;

// The body of the frame that answers.
template <typename T>
std::string EncodeReply(const T& reply) {
  FieldEncoder response;
  response(layout::Field{T::kNumber, ""}, reply);
  return response.Release();
}

// Nothing if the bytes are another answer, or none.
template <typename T>
std::optional<T> DecodeReply(std::string_view response) {
  std::optional<T> reply;
  WireReader in(response);
  while (in.Next()) {
    if (in.field() == T::kNumber) reply = DecodeFields<T>(in.chunk());
  }
  if (!in.ok()) reply.reset();
  return reply;
}

}  // namespace cgdebug::answers
