#include "client/cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>

namespace cgdebug::cli {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// The length of the escape sequence "\x1b[...m" at the start of `text`, 0 when there is none.
std::size_t EscapeBytes(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find('m');
  return end == std::string_view::npos ? 0 : end + 1;
}

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

std::string LocalTime(std::int64_t realtime_ns, const char* format) {
  const std::time_t seconds = static_cast<std::time_t>(realtime_ns / 1'000'000'000);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  const std::size_t bytes = std::strftime(text, sizeof(text), format, &parts);
  return fmt::format("{}.{:03}", std::string_view(text, bytes), realtime_ns / 1'000'000 % 1000);
}

}  // namespace

bool WantsColor(ColorChoice choice, int fd) {
  if (choice != ColorChoice::kAuto) return choice == ColorChoice::kAlways;
  if (!Variable("NO_COLOR").empty()) return false;
  if (const std::string_view force = Variable("FORCE_COLOR"); !force.empty()) return force != "0";
  return Variable("TERM") != "dumb" && ::isatty(fd) == 1;
}

std::string Style::Wrap(const char* code, std::string_view text) const {
  if (!enabled_ || text.empty()) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string CutToColumns(const std::string& text, std::size_t columns) {
  if (DisplayWidth(text) <= columns) return text;
  std::size_t bytes = 0;
  bool has_escape = false;
  for (std::size_t seen = 0; bytes < text.size();) {
    if (const std::size_t escape_bytes = EscapeBytes(std::string_view(text).substr(bytes))) {
      bytes += escape_bytes;
      has_escape = true;
      continue;
    }
    if (!IsContinuation(text[bytes]) && ++seen >= columns) break;
    ++bytes;
  }
  return text.substr(0, bytes) + "…" + (has_escape ? "\x1b[0m" : "");
}

std::size_t DisplayWidth(std::string_view text) {
  std::size_t columns = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (const std::size_t escape_bytes = EscapeBytes(text.substr(i)); escape_bytes > 0) {
      i += escape_bytes;
      continue;
    }
    if (!IsContinuation(text[i])) ++columns;
    ++i;
  }
  return columns;
}

std::string Printable(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  bool follows_c2 = false;
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    if ((value < 0x20 && byte != '\t') || value == 0x7f) {
      clean += fmt::format("\\x{:02x}", value);
    } else if (follows_c2 && value >= 0x80 && value < 0xa0) {  // U+009B is ESC [ to some terminals
      clean.pop_back();
      clean += fmt::format("\\x{:02x}", value);
    } else {
      clean += byte;
    }
    follows_c2 = value == 0xc2;
  }
  return clean;
}

std::string PrintableLines(std::string_view text) {
  std::string out;
  while (true) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += Printable(text.substr(0, end));
    if (end == text.size()) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string ShellWord(std::string_view text) {
  constexpr std::string_view kSafe =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:+,=%";
  const std::string clean = Printable(text);
  if (!clean.empty() && clean.find_first_not_of(kSafe) == std::string::npos) return clean;
  std::string word = "'";
  for (const char byte : clean) word += byte == '\'' ? std::string("'\\''") : std::string(1, byte);
  return word + "'";
}

std::size_t TerminalColumns(int fd) {
  winsize size{};
  if (::isatty(fd) != 1 || ::ioctl(fd, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
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

std::string FormatTime(std::int64_t realtime_ns) {
  return LocalTime(realtime_ns, "%Y-%m-%d %H:%M:%S");
}

std::string FormatTimeOfDay(std::int64_t realtime_ns) { return LocalTime(realtime_ns, "%H:%M:%S"); }

std::string FormatGrouped(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, " ");
  }
  return text;
}

std::string TextTable::Render(const Style& style, std::size_t max_columns) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(DisplayWidth(column.title));
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  }
  std::size_t used_columns = 0;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) used_columns += widths[i] + 2;
  std::string out;
  const auto render_row = [&](const std::vector<std::string>& row, bool is_title) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool is_last = i + 1 == row.size();
      std::string cell = row[i];
      if (is_last && max_columns > used_columns + 8)
        cell = CutToColumns(cell, max_columns - used_columns);
      const std::size_t width = DisplayWidth(cell);
      const std::string padding(widths[i] > width ? widths[i] - width : 0, ' ');
      if (is_title) cell = style.Bold(cell);
      if (columns_[i].align == Align::kRight) {
        line += padding + cell;
      } else {
        line += cell + (is_last ? "" : padding);
      }
      if (!is_last) line += "  ";
    }
    out += line + "\n";
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  render_row(titles, true);
  for (const auto& row : rows_) render_row(row, false);
  return out;
}

std::string TextTable::RenderPlain() const {
  std::string out;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string cell = row[i];
      std::replace(cell.begin(), cell.end(), '\t', ' ');
      out += cell + (i + 1 == row.size() ? "\n" : "\t");
    }
  }
  return out;
}

}  // namespace cgdebug::cli
