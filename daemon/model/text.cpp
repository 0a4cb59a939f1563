#include "daemon/model/text.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

namespace cgdebug::pipeline {
namespace {

struct Decoded {
  std::uint32_t code_point = 0;
  std::size_t bytes = 0;  // 0: not UTF-8
};

Decoded DecodeOne(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (bytes == 0 || first > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code_point = first & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code_point = code_point << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (code_point < kSmallest[bytes] || code_point > 0x10ffff || surrogate) return {};
  return {code_point, bytes};
}

// Characters that change the direction of writing would make a terminal show the rest reordered.
bool IsControl(std::uint32_t code_point) {
  const auto between = [code_point](std::uint32_t first, std::uint32_t last) {
    return code_point >= first && code_point <= last;
  };
  return between(0, 0x1f) || between(0x7f, 0x9f) || code_point == 0x061c ||
         between(0x200e, 0x200f) || between(0x2028, 0x202e) || between(0x2066, 0x2069);
}

// Whether `text` begins like an escaped byte.
bool LooksEscaped(std::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() >= 4 && text.starts_with("\\x") && is_digit(text[2]) && is_digit(text[3]);
}

}  // namespace

std::string CleanText(std::string_view text_untrusted, bool keep_newlines) {
  std::string clean;
  clean.reserve(text_untrusted.size());
  while (!text_untrusted.empty()) {
    const Decoded decoded = DecodeOne(text_untrusted);
    const std::size_t bytes = decoded.bytes == 0 ? 1 : decoded.bytes;
    const bool kept = keep_newlines && decoded.code_point == '\n';
    const std::string_view character = text_untrusted.substr(0, bytes);
    if (decoded.bytes == 0 || (IsControl(decoded.code_point) && !kept) ||
        LooksEscaped(text_untrusted)) {
      for (const char byte : character) {
        clean += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    } else {
      clean += character;
    }
    text_untrusted.remove_prefix(bytes);
  }
  return clean;
}

}  // namespace cgdebug::pipeline
