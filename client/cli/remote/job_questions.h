// job_questions.h: asks a job, which answers by itself on a socket beside the daemon's
// (python/cgdebug/_rewind/mailbox.py).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "client/analysis/json_number.h"
#include "client/cli/context.h"
#include "daemon/core/base/result.h"

namespace cgdebug::cli {

struct JobAnswer {
  int code = 0;      // what to exit with
  std::string text;  // for people; of codes over 1 what went wrong
  Json json;
};

// The one process that `selector` names and that takes questions. The daemon need not know it: it
// may have no probe. Returns 0, or what to exit with after the reason has been printed.
// Requires: the context is connected.
int FindJobToAsk(Context& context, const std::string& selector, std::int64_t* pid);

// Waits for the answer as long as the question says, or at most `most` (0: that long). Fails: the
// process takes no questions, ends, or does not answer.
Result<JobAnswer> AskJob(const Context& context, std::int64_t pid, const Json& question,
                         std::chrono::seconds most = std::chrono::seconds(0));

// By capture: why a graph of the process cannot be taken apart; empty: it can be. Nothing: the
// process takes no questions.
std::optional<std::map<std::uint64_t, std::string>> GraphsApartOf(const Context& context,
                                                                  std::int64_t pid);

// What a process keeps of the replays of its graphs, as it says itself. A job that hangs does not.
struct KeptReplays {
  std::size_t graphs = 0;
  std::uint64_t bytes = 0;      // of the device
  std::uint64_t frozen_at = 0;  // the first replay at which a graph stopped to keep them; 0: none
};
KeptReplays KeptReplaysOf(const Context& context, std::int64_t pid);

}  // namespace cgdebug::cli
