// condition.h: the value of --on: nan, inf, absmax>X, changed, mismatch.
#pragma once

#include <string>

#include "daemon/core/base/result.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::cli {

// Sets the trigger and its threshold. Fails: with what to type.
Result<void> ParseCondition(const std::string& text, layout::SlotControl* control);

}  // namespace cgdebug::cli
