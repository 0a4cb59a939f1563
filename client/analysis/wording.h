// wording.h: words that many sentences need.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cgdebug::analysis {

// "1 row is", "3 rows are".
inline std::string Count(std::uint64_t count, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}
// "1 row", "3 rows".
inline std::string Count(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}
// " and 3 more"; empty if all are shown.
inline std::string AndMore(std::size_t count, std::size_t shown) {
  return count <= shown ? "" : fmt::format(" and {} more", count - shown);
}

// One word of a shell.
inline std::string QuotedWord(std::string_view text) {
  constexpr std::string_view kSafe =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:+,=%";
  if (!text.empty() && text.find_first_not_of(kSafe) == std::string_view::npos) {
    return std::string(text);
  }
  std::string word = "'";
  for (const char byte : text) word += byte == '\'' ? std::string("'\\''") : std::string(1, byte);
  return word + "'";
}

}  // namespace cgdebug::analysis
