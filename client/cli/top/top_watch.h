// top_watch.h: looks at the daemon again and again, also after it ended and another one began.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "client/cli/context.h"
#include "client/cli/top/said.h"
#include "client/cli/views/live/top_model.h"

namespace cgdebug::cli {

// One look at the daemon. Fails: it is gone or does not answer.
Result<void> LookOnce(Context& context, TopModel* model);

class TopWatch {
 public:
  // Both outlive it. Requires: LookOnce() succeeded for `model`.
  TopWatch(Context* context, TopModel* model, std::chrono::milliseconds timeout)
      : context_(context), model_(model), timeout_(timeout), pid_(model->status().pid) {}

  // Returns what happened since the last look, if somebody has to know.
  std::optional<Said> Look();
  bool is_gone() const { return is_gone_; }
  // Requires: is_gone().
  std::string GoneText() const;

 private:
  std::optional<Said> EndOf(const live::Session& session);

  Context* context_;
  TopModel* model_;
  std::chrono::milliseconds timeout_;
  std::map<std::string, live::SessionState> states_;  // by key
  bool is_gone_ = false;                              // the daemon
  bool is_silent_ = false;                            // it did not answer in time
  std::int64_t gone_ns_ = 0;
  int pid_ = 0;  // of the daemon that answered last
};

}  // namespace cgdebug::cli
