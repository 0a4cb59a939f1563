#include "daemon/core/base/duration.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <map>

namespace cgdebug {

Result<std::chrono::milliseconds> ParseDuration(const std::string& text,
                                                std::chrono::milliseconds least) {
  static const std::map<std::string, double> kUnits = {
      {"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"min", 60e3}, {"h", 3600e3}, {"d", 86400e3}, {"", 1e3}};
  std::size_t used = 0;
  double number = -1;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const auto unit = kUnits.find(text.substr(used));
  if (used == 0 || unit == kUnits.end() || !(number >= 0)) {
    return Error{"'" + text + "' is not a duration; write for example 500ms, 30s, 10m, 1h"};
  }
  if (number * unit->second > static_cast<double>(kLongestDuration.count())) {
    return Error{"'" + text + "' is too long; the longest is 36500d"};
  }
  const std::chrono::milliseconds duration(static_cast<std::int64_t>(number * unit->second));
  if (duration < least) {
    return Error{"'" + text + "' is too short; the shortest is " + std::to_string(least.count()) +
                 "ms"};
  }
  return duration;
}

std::string FormatDuration(double seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds < 1) return fmt::format("{} ms", std::llround(seconds * 1000));
  const auto whole = static_cast<std::uint64_t>(seconds);
  const std::uint64_t minutes = whole / 60;
  const std::uint64_t hours = minutes / 60;
  if (whole < 60) return fmt::format("{}s", whole);
  if (minutes < 60) return fmt::format("{}m{:02}s", minutes, whole % 60);
  if (hours < 24) return fmt::format("{}h{:02}m", hours, minutes % 60);
  return fmt::format("{}d{}h", hours / 24, hours % 24);
}

}  // namespace cgdebug
