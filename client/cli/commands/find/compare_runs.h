// compare_runs.h: `why A B`: where two runs begin to differ.
#pragma once

#include <string>

#include "client/cli/command.h"

namespace cgdebug::cli {

// As `ops diff A B` and `diff --first A B` do. They return what to exit with.
int CompareOpLogs(Context& context, const std::string& a, const std::string& b);
int CompareProbes(Context& context, const std::string& a, const std::string& b);

}  // namespace cgdebug::cli
