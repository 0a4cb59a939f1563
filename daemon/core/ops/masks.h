// masks.h: which rows of an op log hold -Inf on purpose, as a causal mask does. The daemon's
// findings and `check` have one rule.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::ops {

// A row with NaN or Inf, in one replay or in several that are alike.
struct NonfiniteRow {
  std::uint32_t number = 0;
  std::string_view op;
  const std::vector<std::uint32_t>* inputs = nullptr;
  bool is_only_neg_inf = false;
  double share = 0;  // of its elements that are -Inf
};

inline bool IsOnlyNegInf(const numerics::Stats& stats) {
  return stats.neg_inf > 0 && stats.nan == 0 && stats.pos_inf == 0;
}
inline double NegInfShare(const numerics::Stats& stats) {
  return stats.count == 0 ? 0
                          : static_cast<double>(stats.neg_inf) / static_cast<double>(stats.count);
}

// The rows of one log in one replay that may hold -Inf on purpose. Such a row has no other
// non-finite value, and one of these is true: an op wrote it that writes given values in given
// places (full, masked_fill, where, triu); nothing in the log wrote it; it reads such a row and has
// no larger share of -Inf than that row; it copies parts of such rows and of finite ones (index,
// cat). Nobody can tell whether they are masks, so a caller that leaves them out of a verdict must
// list or count them.
class MaskFinder {
 public:
  // Requires: the rows with NaN or Inf of the log, those that a row reads before the row.
  bool IsMask(const NonfiniteRow& row);

 private:
  std::map<std::uint32_t, double> shares_;  // of the masks so far, by number
  std::vector<std::uint32_t> others_;       // that are none; ascending
};

}  // namespace cgdebug::ops
