// nonfinite.h: which NaN and Inf count, and which have an excuse.
#pragma once

#include <optional>

#include "client/analysis/check/check.h"
#include "client/analysis/check/finding_list.h"
#include "client/analysis/check/scan.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// The first bad snapshot, and when it came.
struct EarliestBad {
  FirstBad bad;
  source::Moment moment;
};

// Tells what was not meant to be from rows of op logs with an excuse, adds a finding for either,
// and finds the earliest of the former by time: two graphs, or two shapes of an eager probe, count
// their replays separately. `excuses`: those of all rows, also of what the daemon saw of them and
// is not here. Notes the first of each kind in `check`. Fails: it cannot be read again.
Result<std::optional<EarliestBad>> SortOutNonfinite(source::Source& source, Scan* scan,
                                                    FindingList* findings, Excuses* excuses,
                                                    Check* check);
FindingKind KindOf(Excuse excuse);

// Adds what is near overflow. Gradients that a GradScaler scales are as large as they may be.
void SortOutNearOverflow(const source::Source& source, const Scan& scan, FindingList* findings);

}  // namespace cgdebug::analysis
