// utf8.h: cuts text where a character ends, so that what is left is still UTF-8.
#pragma once

#include <cstddef>
#include <string_view>

namespace cgdebug::ring {

// The length in bytes of the longest prefix of `text` that has at most `limit` bytes and splits no
// character.
constexpr std::size_t CutLength(std::string_view text, std::size_t limit) noexcept {
  if (text.size() <= limit) return text.size();
  std::size_t length = limit;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  return length;
}

}  // namespace cgdebug::ring
