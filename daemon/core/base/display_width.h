// display_width.h: how many columns of a terminal a text takes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cgdebug {

// What a terminal draws at once: an escape sequence, or one code point.
struct Drawn {
  std::size_t bytes = 0;
  std::size_t columns = 0;
  bool is_escape = false;
};

// Requires: `text` is not empty.
Drawn FirstDrawn(std::string_view text);

// Columns on a terminal: escape sequences take none, CJK and emoji two, accents that are put on a
// letter none.
std::size_t DisplayWidth(std::string_view text);

// `text` with blanks behind it, so that it takes `columns` at least.
std::string PadToColumns(std::string text, std::size_t columns);

}  // namespace cgdebug
