// pair_judge.h: whether two snapshots have the same values, as far as is known.
#pragma once

#include "client/analysis/diff/diff.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::analysis {

enum class PairOutcome {
  kBitEqual,
  kUnverified,  // bit-equal if the values, which were not read, match their equal hashes
  kClose,
  kHashEqual,
  kStatsEqual,
  kDifferent,
  kNotCompared,
};

class PairJudge {
 public:
  // Lifetime: all outlive it.
  PairJudge(source::Source& a, source::Source& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  // Fills in why, and how far they are apart; with `lists_largest`, which elements are.
  // Requires: `difference` has both snapshots. Fails: values that are not those of their slots.
  Result<PairOutcome> Judge(const source::Slot& slot_a, const source::Slot& slot_b,
                            bool lists_largest, Difference* difference) const;

 private:
  Result<PairOutcome> JudgeValues(const source::Slot& slot, bool lists_largest,
                                  Difference* difference) const;
  PairOutcome JudgeByStatistics(const source::Slot& slot, Difference* difference) const;
  numerics::CompareOptions Tolerance(layout::Dtype dtype) const;
  // Whether NaN makes equal bytes a mismatch, as it does for assert_close.
  bool NanCanDiffer(const source::Snapshot& snapshot, layout::Dtype dtype) const;

  source::Source& a_;
  source::Source& b_;
  const DiffOptions& options_;
};

}  // namespace cgdebug::analysis
