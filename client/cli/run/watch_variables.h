// watch_variables.h: how `run --watch`, `--blocking` and `--races` reach the job.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "daemon/core/base/result.h"

namespace cgdebug::cli {

using Variables = std::vector<std::pair<std::string, std::string>>;

// What the job's environment needs so that Python in it, and in processes that it starts, watches
// models: CGDEBUG_WATCH, and in front of PYTHONPATH the folder whose sitecustomize reads it.
// With `eager`, an op log has what runs eagerly, and torch.compile compiles nothing. `more`:
// further variables that are read in the same way. Empty without globs and `more`. Fails: a bad
// glob, a level that does not exist, `eager` with a level of compiled code or without globs, or no
// Python package is installed with this program.
Result<Variables> WatchVariables(const std::vector<std::string>& globs, bool eager,
                                 const Variables& more);

// `run --watch -- python x.py` and `run --watch python x.py` take the next word for the globs.
// Fails: these globs look like that; the message has what was meant. `has_end`: a "--" stands
// before the job.
Result<void> CheckWatchHasGlobs(const std::vector<std::string>& globs,
                                const std::vector<std::string>& command, bool has_end);

}  // namespace cgdebug::cli
