// duration.h: durations as people type and read them: "500ms", "30s", "10m", "1h".
#pragma once

#include <chrono>
#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug {

// Now plus this is still a number of nanoseconds.
inline constexpr std::chrono::milliseconds kLongestDuration = std::chrono::hours(36500 * 24);

// A number and ms, s, m or min, h, d; seconds without a unit.
// Fails: the text is not a duration, is negative, longer than 36500 days or shorter than `least`.
Result<std::chrono::milliseconds> ParseDuration(const std::string& text,
                                                std::chrono::milliseconds least = {});

// "950 ms", "42s", "2m13s", "2h13m", "3d4h".
std::string FormatDuration(double seconds);

}  // namespace cgdebug
