// masks.h: which NaN and Inf of the rows of op logs are no reason for alarm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "client/analysis/ops/op_log.h"
#include "client/source/source.h"
#include "daemon/core/numerics/stats.h"
#include "daemon/core/ops/masks.h"

namespace cgdebug::analysis {

// What the snapshots of a slot hold that is not finite.
struct SeenSlot {
  // A replay, and an iteration of a conditional body in it.
  using Time = std::pair<std::uint64_t, std::uint32_t>;
  struct Bad {
    Time time;
    std::uint64_t neg_inf = 0;
    std::uint64_t count = 0;  // elements that are not finite
    double share = 0;         // of the elements that are -Inf
    bool is_only_neg_inf = false;
    bool has_nan = false;
    std::optional<std::uint64_t> ordered_hash = {};
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
  kMask,  // ops::MaskFinder. An input whose number of -Inf changes has none: nobody knows who wrote
          // it
  // Of the rows that read it none has a NaN or an Inf of it. What reads a NaN is an op that would
  // pass on what it takes of it: where(), index(), or a product that read another part. What only
  // comparisons read is an Inf that the program gives. What is made between two eager calls,
  // outside of all modules, may be an input of the next one; of that, also a NaN that the program
  // gives and nothing reads.
  kAbsorbed,
  kPadding,       // padding rows alone have it, as cgdebug.valid_rows() tells
  kSkipped,       // a gradient in which torch's GradScaler found it, and then skipped the step
  kRowsNotKnown,  // it is made of such padding, and nobody knows which of its rows are real
  // A row of that replay or call that is not here, and would tell, may be one of these excuses: one
  // that reads it, or that it reads, or the one in which the GradScaler tells of a skipped step.
  kMayHaveOne,
};
using Excuses = std::map<std::pair<std::size_t, SeenSlot::Time>, Excuse>;  // by slot and time

// Those of the snapshots of rows of op logs that have one, and of the probes ROW.value, which keep
// what a row holds. `seen`: slots in graph order.
Excuses FindExcuses(source::Source& source, const std::vector<SeenSlot>& seen);

// The slots of probes ROW.value, and those of their rows: one for each shape.
std::map<std::size_t, std::vector<std::size_t>> RowsOfValues(const source::Source& source);

// Whether a row of an op log says which rows of its run are real.
bool IsRowMask(std::string_view op);

// Whether a row of an op log is a gradient, before an optimizer sees it.
bool IsGradient(const source::Slot& slot);
// Whether the row is of the op with which torch's GradScaler looks at gradients: until then they
// are as large as their type allows, on purpose.
bool IsOfGradScaler(const source::Slot& slot);

// The numbers of those rows of a log.
std::vector<std::uint32_t> MasksOf(const OpLog& log);

}  // namespace cgdebug::analysis
