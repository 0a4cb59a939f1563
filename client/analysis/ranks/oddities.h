// oddities.h: what is odd about the ranks of a report, and changes no verdict.
#pragma once

#include "client/analysis/ranks/rank_rows.h"
#include "client/analysis/ranks/ranks.h"
#include "client/analysis/ranks/ranks_state.h"

namespace cgdebug::analysis {

// Adds notes, and what the clocks of the rows say.
void AddOddities(const RankState& state, const RanksOptions& options, const RankRows& rows,
                 RanksReport* report);

}  // namespace cgdebug::analysis
