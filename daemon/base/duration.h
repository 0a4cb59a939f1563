// duration.h: "500ms", "30s", "10m", "1h" as people type them.
#pragma once

#include <chrono>
#include <string>

#include "daemon/base/result.h"

namespace cgdebug {

// A number and ms, s, m or min, h, d; seconds without a unit.
// Fails: the text is none, negative, or longer than 36500 days; shorter than `least`.
Result<std::chrono::milliseconds> ParseDuration(const std::string& text,
                                                std::chrono::milliseconds least = {});

}  // namespace cgdebug
