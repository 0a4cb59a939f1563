// told.h: what the daemon said of snapshots that a source no longer has.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/analysis/check/check.h"
#include "client/analysis/check/finding_list.h"
#include "client/analysis/check/scan.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// Whether the snapshot of which the daemon told is among `keys`, those of its slot. If its replay
// has several iterations, it is the one with its serial.
bool IsHere(source::Source& source, const std::vector<source::Key>& keys,
            const source::Finding& told);

// Adds what the daemon found in snapshots that are not here; the others were looked at already.
// `first_bad`: when the first bad snapshot that is here came. `excuses`: of rows of op logs.
// Notes the first of each kind in `check`. Returns what came before `first_bad`, and has none.
std::optional<source::Finding> AddTold(source::Source& source, const Scope& scope, const Scan& scan,
                                       const Excuses& excuses,
                                       const std::optional<source::Moment>& first_bad,
                                       FindingList* findings, Check* check);

// Check::seen_finite.
std::uint64_t SeenFinite(source::Source& source, const Scope& scope, const Scan& scan,
                         const Check& check);

}  // namespace cgdebug::analysis
