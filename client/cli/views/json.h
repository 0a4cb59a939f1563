// json.h: what the daemon knows, as JSON. Fields are only added, never renamed.
#pragma once

#include "client/cli/views/tensor/tensor_json.h"
#include "client/live/events.h"
#include "client/live/status.h"

namespace cgdebug::cli {

Json ToJson(const live::Event& event);  // with "event": its kind
Json ToJson(const live::Status& status);

}  // namespace cgdebug::cli
