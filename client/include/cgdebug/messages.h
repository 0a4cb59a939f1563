// messages.h: the requests that a Client (client.h) takes, and its answers.
#pragma once

#include <string>

#include "proto/control.pb.h"

namespace cgdebug::client {

struct Tensor {
  v1::GetReply reply;
  std::string payload;  // contiguous elements, little-endian; empty with metadata_only or dropped
};

}  // namespace cgdebug::client
