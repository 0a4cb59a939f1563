// excuses.h: which NaN and Inf of a run have an excuse, as `check` knows them.
#pragma once

#include <string>

#include "cgdebug/client.h"
#include "client/cli/run/run_summary.h"

namespace cgdebug::cli {

// Of each session whose first NaN or Inf is in a row of an op log: puts the first that has no
// excuse in its place. Requires: RunSummary::rows.
void SortOutExcuses(client::Client* client, RunSummary* summary);
// The same from a recording of the run, which has also what the daemon let go. Does nothing where
// it cannot be read.
void SortOutExcusesIn(const std::string& recording, RunSummary* summary);

}  // namespace cgdebug::cli
