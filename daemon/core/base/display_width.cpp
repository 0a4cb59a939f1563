#include "daemon/core/base/display_width.h"

#include <locale.h>
#include <wchar.h>

#include <iterator>
#include <utility>

namespace cgdebug {
namespace {

// The length of the escape sequence "\x1b[...m" at the start of `text`, 0 when there is none.
std::size_t EscapeBytes(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find('m');
  return end == std::string_view::npos ? 0 : end + 1;
}

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// The C library's table, for UTF-8 whatever the locale is: 2 for CJK and emoji, 0 for what is put
// on top of the character before it.
std::size_t ColumnsOf(wchar_t point) {
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return 1;
  const locale_t before = ::uselocale(utf8);
  const int columns = ::wcwidth(point);
  ::uselocale(before);
  return columns < 0 ? 1 : static_cast<std::size_t>(columns);
}

}  // namespace

Drawn FirstDrawn(std::string_view text) {
  if (const std::size_t bytes = EscapeBytes(text); bytes > 0) return {bytes, 0, true};
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return {1, 1};
  std::size_t bytes = 1;
  while (bytes < text.size() && IsContinuation(text[bytes])) ++bytes;
  constexpr unsigned kFirstBits[] = {0, 0, 0x1f, 0x0f, 0x07};  // by the length of the character
  if (bytes >= std::size(kFirstBits)) return {bytes, 1};
  wchar_t point = static_cast<wchar_t>(first & kFirstBits[bytes]);
  for (std::size_t i = 1; i < bytes; ++i) {
    point = (point << 6) | (static_cast<unsigned char>(text[i]) & 0x3f);
  }
  return {bytes, ColumnsOf(point)};
}

std::size_t DisplayWidth(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Drawn drawn = FirstDrawn(text);
    columns += drawn.columns;
    text.remove_prefix(drawn.bytes);
  }
  return columns;
}

std::string PadToColumns(std::string text, std::size_t columns) {
  const std::size_t width = DisplayWidth(text);
  return width < columns ? std::move(text) + std::string(columns - width, ' ') : text;
}

}  // namespace cgdebug
