// status_line.h: one line at the foot of a terminal that stays while others scroll above it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cgdebug::cli {

// Keeps the last row out of what scrolls, as apt does for its progress: what a job writes meanwhile
// can neither overwrite the line nor be overwritten by it.
//
// Thread: one at a time.
class StatusLine {
 public:
  // Takes the row with the first Show(). Does nothing if `fd` is not a terminal, or is a dumb one.
  explicit StatusLine(int fd);
  // Gives the row back.
  ~StatusLine() { Clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool usable() const { return usable_; }
  // `text` without control characters, cut to the terminal.
  void Show(std::string_view text);
  void Clear();

 private:
  void Write(const std::string& text);

  const int fd_;
  const bool usable_;
  std::string shown_;
  std::size_t rows_ = 0;  // of the terminal when the row was taken; 0: not taken
};

}  // namespace cgdebug::cli
