// masks.h: which rows of an op log hold -Inf on purpose, as a causal mask does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "client/analysis/op_log.h"
#include "client/source/source.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::analysis {

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

// Those of the rows of one log that may hold -Inf on purpose: nothing else in them is non-finite,
// and either an op wrote them that writes given values where it is told to (full, masked_fill,
// where, triu), or nothing in the log wrote them, or they read such a row and have no larger part
// of -Inf than it. Whether they are masks nobody can tell: whoever leaves them out of a verdict
// must list them. Requires: ascending numbers.
std::vector<bool> FindMasks(const std::vector<NonfiniteRow>& rows);

// What the snapshots of a slot hold that is not finite. Those with NaN or +Inf, which no mask has,
// are left out: a mask may turn into NaN when its input does.
struct SeenSlot {
  std::size_t slot = 0;
  bool was_finite = false;       // one of them holds neither NaN nor Inf
  bool is_only_neg_inf = false;  // some hold -Inf, and all of these the same number of it
  std::uint64_t neg_inf = 0;     // of the first of these
  double share = 0;              // likewise, of its elements

  void Note(const numerics::Stats& stats);
};

// Those of the slots that are rows of op logs and may hold -Inf on purpose, in every replay in
// which they hold neither NaN nor +Inf. An input that was finite in some replays may not: nobody
// knows what wrote the -Inf. `seen`: slots in graph order.
std::set<std::size_t> FindMaskSlots(const source::Source& source,
                                    const std::vector<SeenSlot>& seen);

// The numbers of those rows of a log.
std::vector<std::uint32_t> MasksOf(const OpLog& log);

}  // namespace cgdebug::analysis
