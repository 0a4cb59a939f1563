// duration.h: "500ms", "30s", "10m", "1h" as people type them.
#pragma once

#include <chrono>
#include <string>

#include "daemon/base/result.h"

namespace cgdebug {

// A number and ms, s, m or min, h, d; seconds without a unit.
// Fails: the text is none, negative, or longer than 30000 years.
Result<std::chrono::milliseconds> ParseDuration(const std::string& text);

}  // namespace cgdebug
