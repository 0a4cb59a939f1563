// statistics_verdict.h: compares two snapshots of which only statistics were recorded.
#pragma once

#include <string>
#include <vector>

#include "daemon/core/numerics/compare.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::analysis {

struct RecordedStats {
  const numerics::Stats& stats;
  std::string path;  // where they were recorded
};

struct StatisticsVerdict {
  enum class Kind {
    kSame,  // all statistics and both hashes (without NaN): the same values, at the same places
    kDifferent,
    kUnknown,
  };
  Kind kind = Kind::kSame;
  std::string reason = {};                  // unless they are the same
  std::vector<std::string> differing = {};  // names of statistics
};

struct StatisticsOptions {
  bool can_be_nan = false;     // a floating type
  bool has_tolerance = false;  // rtol or atol was given: what differs may lie within them
  bool is_row = false;         // of an op log: nobody is told that it has no values
};

// As for assert_close, NaN equals nothing unless `tolerance.equal_nan`. With `equal_nan`, unequal
// hashes prove no difference if there is a NaN, because NaN has many bit patterns.
StatisticsVerdict JudgeStatistics(const RecordedStats& a, const RecordedStats& b,
                                  const numerics::CompareOptions& tolerance,
                                  const StatisticsOptions& options);

}  // namespace cgdebug::analysis
