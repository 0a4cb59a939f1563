// log_place.h: names an op log, or one replay of it, on the command line.
#pragma once

#include <string>

#include "client/analysis/ops/op_log.h"
#include "client/cli/context.h"
#include "daemon/core/base/result.h"

namespace cgdebug::cli {

// SOURCE, SOURCE@REPLAY, SOURCE@call:N, SOURCE@g:GRAPH or SOURCE@g:GRAPH@REPLAY.
struct LogPlace {
  std::string source;  // "live" if none was typed
  analysis::OpLogChoice choice;
  bool names_replay = false;
};

struct LogPlaceOptions {
  const char* command;     // for what to type
  std::string graph = {};  // --graph
  bool takes_calls = true;
};
// Fails: a malformed replay or call; what to type.
Result<LogPlace> ParseLogPlace(const Context& context, const std::string& text,
                               const LogPlaceOptions& options);

}  // namespace cgdebug::cli
