// answer.h: what a request is answered with, before it becomes a frame.
#pragma once

#include <optional>
#include <string>

#include "daemon/core/answers/reply.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

// A struct of daemon/core/answers, which is encoded once; else a message.
class Answer {
 public:
  template <typename Reply>
  void Set(const Reply& reply) {
    encoded_ = answers::EncodeReply(reply);
  }
  v1::Response* message() { return &message_; }

  v1::Error* mutable_error() { return message_.mutable_error(); }
  void clear_error() { message_.clear_error(); }
  bool has_error() const { return message_.has_error(); }

  // The body of its frame.
  std::string Body() const { return encoded_ ? *encoded_ : message_.SerializeAsString(); }

 private:
  std::optional<std::string> encoded_;
  v1::Response message_;
};

}  // namespace cgdebug::serve
