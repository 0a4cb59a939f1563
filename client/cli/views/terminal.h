// terminal.h: colours, units and tables for people; tabs for scripts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/display_width.h"

namespace cgdebug::cli {

enum class ColorChoice { kAuto, kAlways, kNever };

// Whether to colour what goes to `fd`: a flag decides, then NO_COLOR, FORCE_COLOR, TERM=dumb, then
// whether it is a terminal.
bool WantsColor(ColorChoice choice, int fd);

class Style {
 public:
  Style() = default;
  explicit Style(bool enabled) : enabled_(enabled) {}

  bool enabled() const { return enabled_; }
  std::string Bold(std::string_view text) const { return Wrap("1", text); }
  std::string Dim(std::string_view text) const { return Wrap("2", text); }
  std::string Red(std::string_view text) const { return Wrap("1;31", text); }
  std::string Green(std::string_view text) const { return Wrap("32", text); }
  std::string Yellow(std::string_view text) const { return Wrap("33", text); }

 private:
  std::string Wrap(const char* code, std::string_view text) const;

  bool enabled_ = false;
};

// The first `columns` columns of `text`, with an ellipsis when something is missing.
std::string CutToColumns(const std::string& text, std::size_t columns);

// The last `columns` columns of `text`, likewise: what tells the names of modules apart stands at
// their end. Requires: no escape sequence.
std::string CutToLastColumns(const std::string& text, std::size_t columns);

// `text` without control characters (except tab), so that a name that a job chose cannot control
// the terminal.
std::string Printable(std::string_view text);
// Cleans several lines in this way; line feeds stay.
std::string PrintableLines(std::string_view text);

// `text` as one word of a shell command for pasting, quoted if necessary.
std::string ShellWord(std::string_view text);

// The width of the terminal behind `fd`; 0 if it is not a terminal.
std::size_t TerminalColumns(int fd);
// From now on stdout and stderr have this width, whatever is behind them: a pager on a terminal.
void SetTerminalColumns(std::size_t columns);
// The width that watch(1) has, if it reads this process's stdout to show it; else 0.
std::size_t ColumnsOfWatch();

// numerics::IsAscii() of this process's environment.
bool LocaleIsAscii();

// `text` with lines wider than `columns` broken at spaces; continuation lines are indented. A wider
// word stays whole.
std::string WrapLines(std::string_view text, std::size_t columns);

// How WriteText() writes from now on, to every stream.
struct TextForm {
  bool is_ascii = false;
  bool wraps = true;  // to the terminal it is written to
};
void SetTextForm(const TextForm& form);

// Writes text for people: everything that commands print goes through here, except raw data.
void WriteText(std::FILE* stream, std::string_view text);

// Local time: "2026-11-21 08:56:52.123"; FormatTimeOfDay() leaves out the date.
std::string FormatTime(std::int64_t realtime_ns);
std::string FormatTimeOfDay(std::int64_t realtime_ns);

// With spaces between thousands: "1 204".
std::string FormatGrouped(std::uint64_t value);
// "1 row", "1 204 rows".
std::string GroupedCount(std::uint64_t count, std::string_view noun);
// Groups the digits of every whole number in `text`: "1..1 204".
std::string GroupDigits(std::string_view text);

class TextTable {
 public:
  // kCount: to the right, with spaces between thousands in Render().
  enum class Align { kLeft, kRight, kCount };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    bool is_optional = false;  // may be left out where the terminal is narrow
    std::size_t least = 10;    // columns that a cut text keeps at least
    bool is_name = false;      // its texts are cut last, and keep their end
    bool leaves_late = false;  // left out only when no optional column is left
  };
  static Column Name(std::string title) {
    constexpr std::size_t kLeast = 24;
    return {std::move(title), Align::kLeft, false, kLeast, true};
  }

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }

  // Aligned, titles bold. So that a row fits into `max_columns` (0 = any width), text is cut with
  // an ellipsis, the last column first and names last, and optional columns are left out, the last
  // one first, then those that leave late; a line below the table names them. Numbers are never
  // cut.
  std::string Render(const Style& style, std::size_t max_columns) const;

 private:
  struct Fit {
    std::vector<std::size_t> widths;
    std::vector<bool> is_shown;
  };
  Fit FitInto(std::size_t max_columns) const;
  std::string RenderCells(const Style& style, std::size_t max_columns) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cgdebug::cli
