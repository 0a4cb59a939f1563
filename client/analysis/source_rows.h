// source_rows.h: the slots of a source with what all their snapshots say together: the numbers of
// `stats`, of `info` and of a report.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/analysis/diff/align.h"
#include "client/analysis/json_number.h"
#include "client/source/source.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::analysis {

struct SourceRow {
  std::size_t slot = 0;
  std::vector<source::Key> keys;
  std::uint64_t lost = 0;
};

// The slots that `scope` wants, in the order of their graphs.
Result<std::vector<SourceRow>> RowsOf(source::Source& source, const Scope& scope);

// Sums over every snapshot of a slot. Snapshots that cannot be read are counted and reported.
struct Totals {
  std::vector<double> abs_max;  // of the finite elements
  std::vector<double> spark;    // the same; infinite where not every element is finite
  double min = NAN;
  double max = NAN;
  double mean_sum = 0;
  std::uint64_t finite_snapshots = 0;
  std::uint64_t nonfinite_snapshots = 0;
  std::uint64_t unread = 0;
  // The first NaN or Inf, and in which slot.
  std::optional<source::Moment> first_bad;
  std::size_t first_bad_slot = 0;

  void Add(const source::Slot& slot, const source::Snapshot& snapshot,
           const numerics::Stats& stats);
  // The mean of the snapshots' means; NaN without a finite element.
  double mean() const {
    return finite_snapshots == 0 ? NAN : mean_sum / static_cast<double>(finite_snapshots);
  }
};

// Adds the snapshots of `row`.
void AddTo(Totals* totals, source::Source& source, const SourceRow& row);
Totals TotalsOf(source::Source& source, const SourceRow& row);

// Everything that a tensor's statistics say.
Json StatsJson(const numerics::Stats& stats);
Json SlotJson(const source::Slot& slot, const SourceRow& row);
// The same with the totals, except abs_max.
Json TotalsJson(const source::Slot& slot, const SourceRow& row, const Totals& totals);

}  // namespace cgdebug::analysis
