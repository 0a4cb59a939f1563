// interrupt.h: Ctrl-C ends the view, a second one the process.
#pragma once

#include "cgdebug/client.h"

namespace cgdebug::cli {

// While it lives, the first SIGINT or SIGTERM stops `client`'s call; the next one has its default
// effect.
// Thread: one object at a time.
class InterruptScope {
 public:
  explicit InterruptScope(client::Client* client);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool interrupted() const;
};

// What a shell calls the end by the signal that came last: 130 for Ctrl-C, 143 for SIGTERM.
// Requires: one came.
int InterruptExitCode();

}  // namespace cgdebug::cli
