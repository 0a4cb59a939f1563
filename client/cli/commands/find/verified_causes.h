// verified_causes.h: runs the replay of a finding again, where the job has kept it.
#pragma once

#include "client/analysis/why/why.h"
#include "client/cli/context.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// Asks the live job of the first finding of level shown that lies in a replay of a captured graph,
// if that job takes questions. The finding is verified then, or a fact of it says why not.
// `all`: asks for each of these findings, and says of which nobody could be asked.
void VerifyCauses(Context& context, const source::Source& source, bool all,
                  analysis::why::Causes* causes);

}  // namespace cgdebug::cli
