// columns.h: replays as the columns of a picture. A column stands for one replay, or for several
// when there are more replays than room. Then it has the worst of them: the least minimum, the
// greatest maximum, and every NaN and every loss.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/analysis/json_number.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::report {

// "AAECAw==".
std::string Base64(std::span<const std::byte> bytes);

// Numbers for the page: null if none is a number, {"f4": base64} where floats hold them (exactly,
// with `is_exact`; else within rounding), otherwise {"f8": base64}; little-endian.
Json SeriesJson(const std::vector<double>& values, bool is_exact);

// Which column a replay lies in. Every replay has one.
class Axis {
 public:
  // first > last: no replays and no columns.
  Axis(std::uint64_t first, std::uint64_t last, std::uint64_t most_columns);

  std::size_t columns() const { return columns_; }
  std::uint64_t first() const { return first_; }
  std::uint64_t last() const { return last_; }
  std::uint64_t replays_per_column() const { return per_column_; }
  // Requires: columns() > 0. Replays outside lie in the first or last column.
  std::size_t ColumnOf(std::uint64_t replay) const;
  // `factor` columns become one.
  Axis Merged(std::size_t factor) const;

 private:
  std::uint64_t first_;
  std::uint64_t last_;
  std::uint64_t per_column_ = 1;
  std::size_t columns_ = 0;
};

// The snapshots of one slot.
class Strip {
 public:
  explicit Strip(std::size_t columns) : columns_(columns) {}

  void Add(std::size_t column, const numerics::Stats& stats);
  void AddUnread(std::size_t column) { columns_[column].is_unread = true; }
  // Something between is missing. Both are included.
  void AddGap(std::size_t first, std::size_t last);
  Strip Merged(std::size_t factor) const;
  // {"state": {"u1": base64}, "min": series, ...}. A state is a sum of: 1 there are snapshots,
  // 2 some are missing, 4 some cannot be read.
  Json ToJson() const;

 private:
  struct Column {
    bool is_there = false;
    bool has_gap = false;
    bool is_unread = false;
    double min = NAN;
    double max = NAN;
    double mean_sum = 0;
    std::uint64_t means = 0;
    double std = NAN;       // the greatest
    std::uint64_t nan = 0;  // elements
    std::uint64_t inf = 0;
  };
  std::vector<Column> columns_;
};

// What became of the pairs of two slots.
class DifferenceStrip {
 public:
  // The states of a column, as bits.
  static constexpr std::uint8_t kEqual = 1, kDifferent = 2, kNotCompared = 4,
                                kByNonfinite = 8;  // with kDifferent

  explicit DifferenceStrip(std::size_t columns) : columns_(columns) {}
  void Add(std::size_t column, std::uint8_t state, std::optional<double> max_abs);
  DifferenceStrip Merged(std::size_t factor) const;
  // {"state": {"u1": base64}, "max_abs": series}.
  Json ToJson() const;

 private:
  struct Column {
    std::uint8_t state = 0;
    double max_abs = NAN;
  };
  std::vector<Column> columns_;
};

}  // namespace cgdebug::report
