// causes.h: what `why` and `check --padding` say to type.
#pragma once

#include <string>

#include "client/analysis/why/why_report.h"
#include "client/cli/context.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// What to type to see more of a place in `source`, which was typed as `name`. Both outlive it.
analysis::why::CommandOf CommandsIn(const Context& context, const source::Source& source,
                                    const std::string& name);

}  // namespace cgdebug::cli
