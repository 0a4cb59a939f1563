// nonfinite.h: which NaN and Inf count, and which have an excuse.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "client/analysis/check/check.h"
#include "client/analysis/check/finding_list.h"
#include "client/analysis/check/scan.h"
#include "client/analysis/ops/op_log.h"
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

// What of that is in an op log.
struct LogExcuses {
  std::set<std::uint32_t> excused;   // numbers of rows of the replay of the log
  std::set<std::uint32_t> open;      // likewise: nobody knows whether they have an excuse
  std::set<std::uint32_t> awaiting;  // of `open`: a row that is not here, or not yet, would tell
  // The first replay of the log with a NaN that has no excuse; 0: none.
  std::uint64_t nan_since = 0;
  bool is_nan_kept = false;         // whether the row that has it is here
  std::uint64_t nan_next_call = 0;  // as NextCallOf()
};

// Fails: the source cannot be read.
Result<LogExcuses> ExcusesOfLog(source::Source& source, const OpLog& log);

}  // namespace cgdebug::analysis
