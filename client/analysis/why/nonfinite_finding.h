// nonfinite_finding.h: what is said of one row that has NaN or Inf in one run.
#pragma once

#include <cstddef>

#include "client/analysis/why/evidence.h"
#include "client/analysis/why/why.h"

namespace cgdebug::analysis::why {

// Whether it has NaN that the program leaves out again.
inline bool IsAbsorbedNan(const Row& row, std::size_t run) {
  return row.at[run].nan > 0 && row.at[run].excuse == Excuse::kAbsorbed;
}

// `is_made`: all that it read is shown, and finite but for masks.
Finding DescribeNonfinite(const Evidence& evidence, std::size_t log_place, std::size_t place,
                          std::size_t run, bool is_made);

}  // namespace cgdebug::analysis::why
