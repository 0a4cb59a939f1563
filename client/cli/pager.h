// pager.h: long output goes through a pager, as git's does.
#pragma once

#include "daemon/core/base/unique_fd.h"

namespace cgdebug::cli {

// While one exists that is wanted, what is written to stdout goes through the command PAGER from
// the first text on, by default through `less -FRX`, which ends by itself if all fits on the
// screen. So does stderr, if it is a terminal: its lines keep their places. Nothing changes if
// stdout is no terminal or a dumb one, if PAGER is empty or `cat`, or if there is no such program.
// The widths of terminal.h stay those of the terminal.
//
// Thread: the main thread; one at a time.
class Pager {
 public:
  explicit Pager(bool is_wanted);
  // Waits until the reader has left it.
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // Of the one that exists. Whoever writes text for people calls it first.
  static void BeforeText();

 private:
  void Start();

  bool is_wanted_;
  UniqueFd stderr_;  // the terminal, while stderr is paged
  int pid_ = 0;
};

}  // namespace cgdebug::cli
