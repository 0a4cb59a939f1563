// ask.h: asks the daemon, and reads its answer as a struct of daemon/core/answers.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "cgdebug/client.h"
#include "cgdebug/messages.h"
#include "daemon/core/answers/reply.h"

namespace cgdebug::live {

// `request`: a message of proto/control.proto. Fails: as client::Client.
template <typename Reply>
Result<Reply> Ask(client::Client& client, const google::protobuf::Message& request) {
  const Result<std::string> body = client.AskForBytes(request);
  if (!body.ok()) return body.error();
  std::optional<Reply> reply = answers::DecodeReply<Reply>(*body);
  if (!reply)
    return Error{"this version cannot read what the daemon answers. Type: cgdebug-cli daemon stop"};
  return *std::move(reply);
}

}  // namespace cgdebug::live
