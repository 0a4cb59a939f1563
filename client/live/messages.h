// messages.h: converts the daemon's answers to the model that recordings and files share. Protobuf
// stops here: the rest of client/ takes the structs of client/live and client/source.
#pragma once

#include "cgdebug/messages.h"
#include "client/live/events.h"
#include "client/source/source.h"

namespace cgdebug::live {

Event EventOf(const v1::TailReply& event);
// Without values.
source::Tensor TensorOf(const v1::Snapshot& snapshot);
source::Tensor TensorOf(client::Tensor tensor);

void FillWhich(const WhichSlots& which, v1::Which* message);

}  // namespace cgdebug::live
