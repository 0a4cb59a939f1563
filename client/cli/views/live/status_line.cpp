#include "client/cli/views/live/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "client/cli/views/terminal.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kFewestRows = 4;

bool IsCapable(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

// 0 when they are not known.
winsize SizeOf(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  return size;
}

}  // namespace

StatusLine::StatusLine(int fd) : fd_(fd), usable_(IsCapable(fd)) {}

void StatusLine::Show(std::string_view text) {
  const winsize size = SizeOf(fd_);
  if (rows_ == size.ws_row && text == shown_) return;
  shown_ = text;
  if (!usable_ || size.ws_row < kFewestRows || size.ws_col == 0) return;
  std::string out;
  if (rows_ != size.ws_row) {
    // The empty line makes room if the cursor is on the last row. Setting the margins moves the
    // cursor.
    rows_ = size.ws_row;
    out += fmt::format(
        "\n\x1b"
        "7\x1b[1;{}r\x1b"
        "8\x1b[1A",
        rows_ - 1);
  }
  std::string line = Printable(text);
  line = CutToColumns(line, size.ws_col - 1u);
  out += fmt::format(
      "\x1b"
      "7\x1b[{};1H\x1b[2K\x1b[2m{}\x1b[0m\x1b"
      "8",
      rows_, line);
  Write(out);
}

void StatusLine::Clear() {
  if (rows_ == 0) return;
  Write(
      fmt::format("\x1b"
                  "7\x1b[{};1H\x1b[2K\x1b[r\x1b"
                  "8",
                  rows_));
  rows_ = 0;
}

// A terminal that is gone loses the line, and nothing else.
void StatusLine::Write(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace cgdebug::cli
