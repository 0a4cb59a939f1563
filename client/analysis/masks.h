// masks.h: which rows of an op log hold -Inf on purpose, as a causal mask does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
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

// The rows of one log that may hold -Inf on purpose. Such a row has no other non-finite value, and
// one of these is true: an op wrote it that writes given values in given places (full, masked_fill,
// where, triu); nothing in the log wrote it; it reads such a row and has no larger share of -Inf
// than that row; it copies parts of such rows and of finite ones (index, cat). Nobody can tell
// whether they are masks, so a caller that leaves them out of a verdict must list them.
// Requires: ascending numbers.
std::vector<bool> FindMasks(const std::vector<NonfiniteRow>& rows);

// What the snapshots of a slot hold that is not finite.
struct SeenSlot {
  // A replay, and an iteration of a conditional body in it.
  using Time = std::pair<std::uint64_t, std::uint32_t>;
  struct Bad {
    Time time;
    std::uint64_t neg_inf = 0;
    double share = 0;  // of the elements that are -Inf
    bool is_only_neg_inf = false;
    bool has_nan = false;
  };
  std::size_t slot = 0;
  std::vector<Time> times = {};     // of all snapshots, ascending
  std::vector<Time> not_zero = {};  // of those that hold a finite number that is not 0
  std::vector<Bad> bad = {};        // ascending

  void Note(const source::Key& key, const numerics::Stats& stats);
};

// Why a snapshot with NaN or Inf is no reason for alarm.
enum class Excuse : std::uint8_t {
  kNone,
  kMask,  // FindMasks(). An input whose number of -Inf changes has none: nobody knows who wrote it
  kAbsorbed,  // Inf, no NaN, and of the rows that read it none has a NaN or an Inf of it
  kSkipped,   // a gradient in which torch's GradScaler found it, and then skipped the step
};
using Excuses = std::map<std::pair<std::size_t, SeenSlot::Time>, Excuse>;  // by slot and time

// Those of the snapshots of rows of op logs that have one. `seen`: slots in graph order.
Excuses FindExcuses(const source::Source& source, const std::vector<SeenSlot>& seen);

// Whether a row of an op log is a gradient, before an optimizer sees it.
bool IsGradient(const source::Slot& slot);
// Whether the row is of the op with which torch's GradScaler looks at gradients: until then they
// are as large as their type allows, on purpose.
bool IsOfGradScaler(const source::Slot& slot);

// The numbers of those rows of a log.
std::vector<std::uint32_t> MasksOf(const OpLog& log);

}  // namespace cgdebug::analysis
