// screen.h: the whole terminal, for a view that stays.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"

namespace cgdebug::cli {

struct Key {
  enum class Kind {
    kText,  // a character
    kUp,
    kDown,
    kPageUp,
    kPageDown,
    kHome,
    kEnd,
    kEnter,
    kEscape,
    kBackspace,
    kClosed,  // the terminal is gone
  };
  Kind kind = Kind::kText;
  std::string text = {};  // of kText, as UTF-8
};

// Takes the terminal of stdin and stdout; gives it back, as it was, at its end.
//
// Thread: one, and one object at a time. Signals: Ctrl-Z and a change of the size are dealt with
// here. Install what SIGINT and SIGTERM do before Open(): what was there stays.
class Screen {
 public:
  // Fails: there is no terminal, terminfo does not know it, or this build has no ncurses.
  static Result<std::unique_ptr<Screen>> Open(bool with_colours);
  virtual ~Screen() = default;

  virtual std::size_t rows() const = 0;
  virtual std::size_t columns() const = 0;
  // One line a row, with the colours of Style; what does not fit is cut. The line with this number
  // is drawn in reverse.
  virtual void Draw(const std::vector<std::string>& lines,
                    std::optional<std::size_t> highlighted) = 0;
  // The next key; nothing if none came in time, a signal came, or the size has changed.
  virtual std::optional<Key> Wait(std::chrono::milliseconds timeout) = 0;
};

}  // namespace cgdebug::cli
