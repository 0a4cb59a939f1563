// terminal.h: colours, units and tables for people; tabs for scripts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

// Columns on a terminal; escape sequences take none, every other code point takes one.
std::size_t DisplayWidth(std::string_view text);

// `text` without control characters (but tab), so that a name that a job chose cannot drive the
// terminal.
std::string Printable(std::string_view text);
// The same of several lines.
std::string PrintableLines(std::string_view text);

// `text` as one word of a shell command that somebody will paste, quoted when it must be.
std::string ShellWord(std::string_view text);

// Of the terminal behind `fd`; 0 when it is none.
std::size_t TerminalColumns(int fd);

// "950 ms", "42s", "2h13m", "3d4h".
std::string FormatDuration(double seconds);

// Local time: "2026-11-21 08:56:52.123", and only the time of day.
std::string FormatTime(std::int64_t realtime_ns);
std::string FormatTimeOfDay(std::int64_t realtime_ns);

// Thousands apart: "1 204".
std::string FormatGrouped(std::uint64_t value);

class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }

  // Aligned, titles bold. `max_columns` cuts the last column so that a row fits; 0 = never.
  std::string Render(const Style& style, std::size_t max_columns) const;
  // One record a line, tabs, no titles, no colours.
  std::string RenderPlain() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cgdebug::cli
