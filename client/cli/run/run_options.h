// run_options.h: what is to be run and watched: as typed behind `run`, set in the environment, and
// written into a file of settings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/run/run_summary.h"
#include "client/cli/run/watch_variables.h"
#include "client/live/recordings.h"
#include "daemon/core/base/result.h"

namespace cgdebug::cli {

struct RunOptions {
  bool no_live = false;
  bool tail = false;
  std::string fail_on;
  std::string on;
  std::string only;
  std::string output;
  live::RecordRequest record;
  bool lossy = false;
  bool force = false;
  std::vector<std::string> watch;
  std::vector<std::string> values;  // globs of rows
  unsigned sketches = 0;
  bool eager = false;
  bool blocking = false;
  bool races = false;
  bool ask = false;
  unsigned rewind = 0;
  std::string config;
  Variables configured = {};  // what a file of settings says beside these options
  std::vector<std::string> command;
};

// The level that --watch names: "op"; "module" if it names none.
std::string_view LevelOf(const RunOptions& options);
Recorded RecordedBy(const RunOptions& options);
// Fails: a kind that does not exist.
Result<FailOn> ParseFailOn(std::string_view list);

// Fills in what was not typed, and returns what the job is told of all of it.
// Fails: no job to run, one that nobody could see, or what the job would refuse.
Result<Variables> SettleOptions(const Context& context, RunOptions* options);

}  // namespace cgdebug::cli
