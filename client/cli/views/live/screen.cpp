#include "client/cli/views/live/screen.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <string_view>

#include "client/cli/views/terminal.h"
#include "daemon/core/base/terminate.h"

#if CGDEBUG_HAS_NCURSES
#define NCURSES_NOMACROS 1
#define NCURSES_WIDECHAR 1
#include <curses.h>
#endif

namespace cgdebug::cli {

#if CGDEBUG_HAS_NCURSES
namespace {

// Pairs of colours, on the terminal's own background.
enum Colour : short { kRed = 1, kGreen, kYellow };

// The attributes after "\x1b[...m" with these `codes`, which are those of Style.
attr_t After(attr_t attributes, std::string_view codes) {
  while (!codes.empty()) {
    const std::size_t end = std::min(codes.find(';'), codes.size());
    const std::string_view code = codes.substr(0, end);
    if (code == "0") attributes = A_NORMAL;
    if (code == "1") attributes |= A_BOLD;
    if (code == "2") attributes |= A_DIM;
    if (code == "31") attributes |= static_cast<attr_t>(COLOR_PAIR(kRed));
    if (code == "32") attributes |= static_cast<attr_t>(COLOR_PAIR(kGreen));
    if (code == "33") attributes |= static_cast<attr_t>(COLOR_PAIR(kYellow));
    codes.remove_prefix(std::min(end + 1, codes.size()));
  }
  return attributes;
}

std::string Utf8(wint_t character) {
  char bytes[MB_LEN_MAX];
  std::mbstate_t state{};
  const std::size_t count = std::wcrtomb(bytes, static_cast<wchar_t>(character), &state);
  return count == static_cast<std::size_t>(-1) ? "" : std::string(bytes, count);
}

constexpr const char* kName = "cgdebug-cli";

// For an end at which no destructor runs. The message was printed on the screen that goes here.
void GiveTerminalBack(const char* message) {
  ::endwin();
  std::fprintf(stderr, "%s: %s\n", kName, message);
}

class CursesScreen : public Screen {
 public:
  explicit CursesScreen(SCREEN* screen) : screen_(screen) {
    EndInsteadOfAborting(kName, &GiveTerminalBack);
  }
  ~CursesScreen() override {
    EndInsteadOfAborting(kName, nullptr);
    ::endwin();
    ::delscreen(screen_);
  }

  std::size_t rows() const override { return static_cast<std::size_t>(std::max(LINES, 1)); }
  std::size_t columns() const override { return static_cast<std::size_t>(std::max(COLS, 1)); }

  void Draw(const std::vector<std::string>& lines,
            std::optional<std::size_t> highlighted) override {
    ::werase(stdscr);
    for (std::size_t row = 0; row < std::min(lines.size(), rows()); ++row) {
      DrawLine(static_cast<int>(row), lines[row], row == highlighted ? A_REVERSE : A_NORMAL);
    }
    ::wrefresh(stdscr);
  }

  std::optional<Key> Wait(std::chrono::milliseconds timeout) override {
    if (std::optional<Key> key = Next()) return key;  // several may have come at once
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    const int ready = ::poll(&input, 1, static_cast<int>(std::max<long>(timeout.count(), 0)));
    if (ready <= 0) {
      // The signal may have been SIGWINCH: this makes ncurses take in the new size.
      return ready < 0 && errno == EINTR ? Next() : std::nullopt;
    }
    std::optional<Key> key = Next();
    if (!key && !was_resized_ && (input.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
      return Key{Key::Kind::kClosed};
    }
    return key;
  }

 private:
  // A character may take two columns, or none.
  static void DrawLine(int row, std::string_view text, attr_t base) {
    attr_t attributes = A_NORMAL;
    int column = 0;
    std::mbstate_t state{};
    ::wmove(stdscr, row, 0);
    while (!text.empty()) {
      if (text.starts_with("\x1b[") && text.find('m') != std::string_view::npos) {
        const std::size_t end = text.find('m');
        attributes = After(attributes, text.substr(2, end - 2));
        text.remove_prefix(end + 1);
        continue;
      }
      wchar_t character = 0;
      std::size_t bytes = std::mbrtowc(&character, text.data(), text.size(), &state);
      if (bytes == 0 || bytes > text.size()) {  // not a character of this locale
        state = {};
        character = L'?';
        bytes = 1;
      }
      text.remove_prefix(bytes);
      if (character == L'\t') character = L' ';
      const int width = ::wcwidth(character);
      if (width < 0 || column + width > COLS) {
        if (width < 0) continue;
        break;
      }
      ::wattrset(stdscr, static_cast<int>(attributes | base));
      ::waddnwstr(stdscr, &character, 1);
      column += width;
    }
    if (base == A_NORMAL) return;
    ::wattrset(stdscr, static_cast<int>(base));
    for (; column < COLS; ++column) ::waddch(stdscr, ' ');
  }

  std::optional<Key> Next() {
    wint_t code = 0;
    was_resized_ = false;
    const int what = ::wget_wch(stdscr, &code);
    if (what == ERR) return std::nullopt;
    using enum Key::Kind;
    if (what == KEY_CODE_YES) {
      switch (code) {
        case KEY_UP:
          return Key{kUp};
        case KEY_DOWN:
          return Key{kDown};
        case KEY_PPAGE:
          return Key{kPageUp};
        case KEY_NPAGE:
          return Key{kPageDown};
        case KEY_HOME:
          return Key{kHome};
        case KEY_END:
          return Key{kEnd};
        case KEY_ENTER:
          return Key{kEnter};
        case KEY_BACKSPACE:
          return Key{kBackspace};
        case KEY_RESIZE:
          was_resized_ = true;
          return std::nullopt;
        default:
          return Key{kText};
      }
    }
    switch (code) {
      case '\r':
      case '\n':
        return Key{kEnter};
      case 0x1b:
        return Key{kEscape};
      case 0x08:
      case 0x7f:
        return Key{kBackspace};
      case 0x04:  // Ctrl-D: the end of the input
        return Key{kClosed};
      case 0x0c:  // Ctrl-L
        ::clearok(stdscr, TRUE);
        return Key{kText};
      default:
        return Key{kText, code < 0x20 ? "" : Utf8(code)};
    }
  }

  SCREEN* const screen_;
  bool was_resized_ = false;
};

}  // namespace

Result<std::unique_ptr<Screen>> Screen::Open(bool with_colours) {
  const char* const term = std::getenv("TERM");
  if (term == nullptr || *term == '\0') return Error{"TERM is not set"};
  // Where the locale is not installed, as in most containers, the terminal still has UTF-8.
  if (std::setlocale(LC_CTYPE, "") == nullptr || (MB_CUR_MAX == 1 && !LocaleIsAscii())) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  SCREEN* const screen = ::newterm(nullptr, stdout, stdin);
  if (screen == nullptr) {
    return Error{fmt::format("terminfo here does not know the terminal '{}'", Printable(term))};
  }
  ::set_term(screen);
  ::cbreak();
  ::noecho();
  ::nonl();
  ::keypad(stdscr, TRUE);
  ::nodelay(stdscr, TRUE);
  ::set_escdelay(25);  // ms until Escape is a key of its own
  ::curs_set(0);
  if (with_colours && ::has_colors()) {
    ::start_color();
    ::use_default_colors();
    ::init_pair(kRed, COLOR_RED, -1);
    ::init_pair(kGreen, COLOR_GREEN, -1);
    ::init_pair(kYellow, COLOR_YELLOW, -1);
  }
  return std::unique_ptr<Screen>(std::make_unique<CursesScreen>(screen));
}

#else

Result<std::unique_ptr<Screen>> Screen::Open(bool) {
  return Error{"this cgdebug-cli was built without ncurses (apt-get install libncurses-dev)"};
}

#endif

}  // namespace cgdebug::cli
