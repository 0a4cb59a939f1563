// condition.h: when a trigger fires: nan, inf, absmax>NUMBER, changed, mismatch.
#pragma once

#include <string>
#include <string_view>

#include "daemon/core/base/result.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::words {

struct Condition {
  layout::ControlTrigger trigger = layout::ControlTrigger::kNone;
  double threshold = 0;  // of kAbsMax
};

// Fails: the text is no condition. The message begins with `what`, which names where it was typed.
Result<Condition> ParseCondition(const std::string& text, std::string_view what);

}  // namespace cgdebug::words
