#include "client/cli/views/terminal.h"

#include <fmt/format.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "client/analysis/wording.h"
#include "daemon/core/numerics/ascii.h"

namespace cgdebug::cli {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

TextForm text_form;
std::size_t paged_columns = 0;

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
  std::size_t bytes = 0, seen = 0;
  bool has_escape = false;
  while (bytes < text.size()) {
    const Drawn drawn = FirstDrawn(std::string_view(text).substr(bytes));
    if (seen + drawn.columns + 1 > columns) break;  // one is for the ellipsis
    has_escape |= drawn.is_escape;
    seen += drawn.columns;
    bytes += drawn.bytes;
  }
  return text.substr(0, bytes) + "…" + (has_escape ? "\x1b[0m" : "");
}

std::string CutToLastColumns(const std::string& text, std::size_t columns) {
  std::string_view rest = text;
  while (!rest.empty() && DisplayWidth(rest) + 1 > columns) {
    rest.remove_prefix(FirstDrawn(rest).bytes);
  }
  return rest.size() == text.size() || DisplayWidth(text) <= columns ? text
                                                                     : "…" + std::string(rest);
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

std::string ShellWord(std::string_view text) { return analysis::QuotedWord(Printable(text)); }

void SetTerminalColumns(std::size_t columns) { paged_columns = columns; }

std::size_t TerminalColumns(int fd) {
  const bool is_output = fd == STDOUT_FILENO || fd == STDERR_FILENO;
  if (is_output && paged_columns > 0) return paged_columns;
  winsize size{};
  if (::isatty(fd) != 1 || ::ioctl(fd, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

namespace {

constexpr int kMostAncestors = 4;  // watch, its shell, and a script or two
constexpr unsigned kMostColumns = 10'000;

// The name of a process and its parent; an empty name if it is gone.
std::pair<std::string, pid_t> NameAndParent(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t begin = text.find('('), end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return {};
  std::istringstream rest(text.substr(end + 1));
  std::string state;
  pid_t parent = 0;
  rest >> state >> parent;
  return {text.substr(begin + 1, end - begin - 1), parent};
}

bool HasOpen(pid_t pid, const std::string& target) {
  std::error_code error;
  for (std::filesystem::directory_iterator file(fmt::format("/proc/{}/fd", pid), error), last;
       !error && file != last; file.increment(error)) {
    std::error_code is_closed;
    if (std::filesystem::read_symlink(file->path(), is_closed) == target) return true;
  }
  return false;
}

}  // namespace

std::size_t ColumnsOfWatch() {
  struct stat out {};
  if (::fstat(STDOUT_FILENO, &out) != 0 || !S_ISFIFO(out.st_mode)) return 0;
  const std::string_view text = Variable("COLUMNS");
  unsigned columns = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), columns);
  if (parsed.ec != std::errc() || columns > kMostColumns) return 0;
  const std::string pipe = fmt::format("pipe:[{}]", out.st_ino);
  pid_t pid = ::getppid();
  for (int i = 0; i < kMostAncestors && pid > 1; ++i) {
    const auto [name, parent] = NameAndParent(pid);
    if (name == "watch" && HasOpen(pid, pipe)) return columns;
    pid = parent;
  }
  return 0;
}

bool LocaleIsAscii() {
  const auto value = [](const char* name) { return std::string(Variable(name)); };
  return numerics::IsAscii({value("LC_ALL"), value("LC_CTYPE"), value("LANG")});
}

namespace {

// How many bytes of `line` to write before breaking it at a space; all of them if it has none.
std::size_t BytesThatFit(std::string_view line, std::size_t columns) {
  std::size_t seen = 0, last_space = 0;
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  for (std::size_t i = 0; i < line.size();) {
    const Drawn drawn = FirstDrawn(line.substr(i));
    if (seen > columns && last_space > 0) return last_space;
    if (line[i] == ' ' && i > begin) last_space = i;
    seen += drawn.columns;
    i += drawn.bytes;
  }
  return seen > columns && last_space > 0 ? last_space : line.size();
}

}  // namespace

std::string WrapLines(std::string_view text, std::size_t columns) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string line(text.substr(0, end));
    const std::size_t indent =
        std::min(columns / 2, std::min(line.find_first_not_of(' '), line.size()) + 4);
    while (DisplayWidth(line) > columns) {
      const std::size_t bytes = BytesThatFit(line, columns);
      if (bytes == line.size()) break;
      out += line.substr(0, line.find_last_not_of(' ', bytes) + 1) + "\n";
      const std::size_t rest = std::min(line.find_first_not_of(' ', bytes), line.size());
      line = std::string(indent, ' ') + line.substr(rest);
    }
    out += line;
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

void SetTextForm(const TextForm& form) { text_form = form; }

void WriteText(std::FILE* stream, std::string_view text) {
  std::string formed(text);
  if (text_form.is_ascii) formed = numerics::ToAscii(formed);
  const std::size_t columns = text_form.wraps ? TerminalColumns(::fileno(stream)) : 0;
  // A line that is drawn over itself knows the width.
  if (columns > 0 && formed.find('\r') == std::string::npos) formed = WrapLines(formed, columns);
  std::fwrite(formed.data(), 1, formed.size(), stream);
}

std::string FormatTime(std::int64_t realtime_ns) {
  return LocalTime(realtime_ns, "%Y-%m-%d %H:%M:%S");
}

std::string FormatTimeOfDay(std::int64_t realtime_ns) { return LocalTime(realtime_ns, "%H:%M:%S"); }

std::string FormatGrouped(std::uint64_t value) { return GroupDigits(std::to_string(value)); }

std::string GroupedCount(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", FormatGrouped(count), noun, count == 1 ? "" : "s");
}

std::string GroupDigits(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    for (std::size_t i = 0; i < digits; ++i) {
      if (i > 0 && (digits - i) % 3 == 0) out += ' ';
      out += text[i];
    }
    text.remove_prefix(digits);
    const std::size_t others = std::min(text.find_first_of("0123456789"), text.size());
    out += text.substr(0, others);
    text.remove_prefix(others);
  }
  return out;
}

TextTable::Fit TextTable::FitInto(std::size_t max_columns) const {
  constexpr std::size_t kGap = 2;
  Fit fit;
  fit.is_shown.assign(columns_.size(), true);
  for (const Column& column : columns_) fit.widths.push_back(DisplayWidth(column.title));
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      fit.widths[i] = std::max(fit.widths[i], DisplayWidth(row[i]));
    }
  }
  if (max_columns == 0) return fit;
  bool cuts_names_short = false;  // where nothing else is left to give
  const auto least = [&](std::size_t i) {
    constexpr std::size_t kLeastOfName = 12;
    if (columns_[i].align != Align::kLeft) return fit.widths[i];
    const std::size_t wanted =
        cuts_names_short && columns_[i].is_name ? kLeastOfName : columns_[i].least;
    return std::min(fit.widths[i], std::max(wanted, DisplayWidth(columns_[i].title)));
  };
  const auto total = [&](auto width_of) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (fit.is_shown[i]) sum += width_of(i) + kGap;
    }
    return sum - std::min(sum, kGap);
  };
  for (const auto may_leave : {&Column::is_optional, &Column::leaves_late}) {
    for (std::size_t i = columns_.size(); i-- > 0 && total(least) > max_columns;) {
      if (columns_[i].*may_leave) fit.is_shown[i] = false;
    }
  }
  cuts_names_short = total(least) > max_columns;
  const auto give_up = [&](std::size_t i) {
    const std::size_t used = total([&](std::size_t column) { return fit.widths[column]; });
    const std::size_t wanted = used > max_columns ? used - max_columns : 0;
    fit.widths[i] -= std::min(wanted, fit.widths[i] - least(i));
  };
  if (!columns_.empty()) give_up(columns_.size() - 1);
  std::vector<std::size_t> widest_first;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (fit.is_shown[i]) widest_first.push_back(i);
  }
  std::stable_sort(widest_first.begin(), widest_first.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(columns_[b].is_name, fit.widths[a]) >
           std::pair(columns_[a].is_name, fit.widths[b]);
  });
  for (const std::size_t i : widest_first) give_up(i);
  return fit;
}

std::string TextTable::Render(const Style& style, std::size_t max_columns) const {
  TextTable grouped(columns_);
  grouped.rows_ = rows_;
  for (auto& row : grouped.rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (columns_[i].align == Align::kCount) row[i] = GroupDigits(row[i]);
    }
  }
  return grouped.RenderCells(style, max_columns);
}

std::string TextTable::RenderCells(const Style& style, std::size_t max_columns) const {
  const Fit fit = FitInto(max_columns);
  std::size_t last = 0;
  std::string left_out;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (fit.is_shown[i]) last = i;
    if (!fit.is_shown[i]) left_out += (left_out.empty() ? "" : " ") + columns_[i].title;
  }
  std::string out;
  const auto render_row = [&](const std::vector<std::string>& row, bool is_title) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!fit.is_shown[i]) continue;
      std::string cell = text_form.is_ascii ? numerics::ToAscii(row[i]) : row[i];
      if (max_columns > 0) {
        cell = columns_[i].is_name ? CutToLastColumns(cell, fit.widths[i])
                                   : CutToColumns(cell, fit.widths[i]);
      }
      const std::size_t width = DisplayWidth(cell);
      const std::string padding(fit.widths[i] > width ? fit.widths[i] - width : 0, ' ');
      if (is_title) cell = style.Bold(cell);
      if (columns_[i].align != Align::kLeft) {
        line += padding + cell;
      } else {
        line += cell + (i == last ? "" : padding);
      }
      if (i != last) line += "  ";
    }
    out += line + "\n";
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  render_row(titles, true);
  for (const auto& row : rows_) render_row(row, false);
  if (!left_out.empty()) {
    out +=
        style.Dim(fmt::format("left out for want of room: {}; --json has them", left_out)) + "\n";
  }
  return out;
}

}  // namespace cgdebug::cli
