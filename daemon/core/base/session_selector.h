// session_selector.h: which session a person means, live or recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cgdebug {

// A session is named by its label, run id, pid, or the first digits of its uuid.
inline bool NamesSession(std::string_view selector, std::string_view label, std::string_view run_id,
                         std::int64_t pid, std::string_view uuid) {
  constexpr std::size_t kMinUuidDigits = 4;
  if (selector.empty()) return false;
  return selector == label || selector == run_id || selector == std::to_string(pid) ||
         (selector.size() >= kMinUuidDigits && uuid.starts_with(selector));
}

}  // namespace cgdebug
