// evidence.h: what the detectors look at: the rows of the op logs of a source, each over all runs,
// and what `check` found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/check/check.h"
#include "client/analysis/ops/masks.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::analysis::why {

// Whether a row is bit for bit the same as in the run before that has it.
enum class Change : std::uint8_t { kUnknown, kSame, kChanged };

// What one run left of a row.
struct Seen {
  bool is_here = false;
  Excuse excuse = Excuse::kNone;
  Change change = Change::kUnknown;
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0;
  double min = 0, max = 0, abs_max = 0;  // NaN without a finite element
  std::uint64_t xor_hash = 0;            // of its elements in any order; 0: unknown, or by chance

  std::uint64_t nonfinite() const { return nan + pos_inf + neg_inf; }
  // Not finite, and nothing excuses it.
  bool is_bad() const { return nonfinite() > 0 && excuse == Excuse::kNone; }
};

// What one run has of the padding rows of a row.
struct Padding {
  bool is_here = false;
  bool mixes = false;  // whether the op may have read other rows for a row
  std::uint64_t nonfinite = 0;
  double abs_max = 0;  // NaN without a finite element
};

// What one run has of an input at the end of its graph.
struct AtEnd {
  bool is_here = false;
  Change change = Change::kUnknown;       // since an op read it first
  std::uint64_t hash = 0, hash_then = 0;  // ordered: at the end, and when it was read first
};

// A tensor that an op wrote, or an input, in all runs of its log that have it.
struct Row {
  std::size_t slot = 0;  // in the first of these runs
  std::uint32_t number = 0;
  std::string op;
  bool is_covered = true;             // whether rows show all that the op read
  std::uint64_t count = 0;            // elements
  std::vector<std::size_t> inputs;    // places in Log::rows, each before this one
  std::vector<std::size_t> readers;   // likewise, behind it
  std::vector<Seen> at;               // by run
  std::vector<Padding> padding = {};  // likewise; empty: its rows are known in none
  std::vector<AtEnd> at_end = {};     // likewise; empty: it is not looked at again
  // The row whose values its op writes over as a whole and does not read, as a place in Log::rows;
  // SIZE_MAX: none that is known.
  std::size_t overwrites = SIZE_MAX;
  bool needs_no_gradient = false;  // a parameter, as the program says: it is not trained
  // Whether its last dimension is 0, 1, 2 and so on throughout, or multiples of a larger number,
  // when it is first seen.
  bool counts_up = false;

  bool is_input() const { return op == "input"; }
};

// One replay of a graph, or one call of eager code.
struct Run {
  std::size_t nth_log = 0;  // an eager log begins again where calls are not alike
  std::uint64_t replay = 0;
  std::uint64_t serial = 0;
  bool tells_rows = false;    // which of them are real
  std::uint64_t padding = 0;  // rows that are not
};

// The rows of one graph, or of what ran eagerly in one process. Runs are in the order in which they
// began; rows come after those that they read.
struct Log {
  std::string graph;  // what it is called; "eager"
  std::string session;
  int rank = -1;
  std::uint64_t graph_id = 0;
  bool counts_calls = false;  // its runs have the numbers of calls
  bool has_unseen = false;    // kernels that no row shows
  std::vector<Run> runs;
  std::vector<Row> rows;
};

// How often a row was the same as before, and how often it was not.
struct Moves {
  std::size_t same = 0;
  std::size_t changed = 0;
  std::size_t unknown = 0;
  bool is_still(std::size_t least) const { return changed == 0 && unknown == 0 && same >= least; }
};

struct Evidence {
  source::Source* source = nullptr;
  const Check* check = nullptr;
  std::vector<Log> logs;
  std::optional<std::vector<source::ProcessGraphs>> graphs;  // as Source::Graphs()
  bool asks_padding = false;  // whether padding is all that is asked about

  const source::Slot& SlotOf(const Row& row) const { return source->slots()[row.slot]; }
  const std::string& NameOf(const Row& row) const { return SlotOf(row).probe; }
  layout::Dtype DtypeOf(const Row& row) const { return SlotOf(row).dtype; }
  bool IsFloating(const Row& row) const;
};

// How many runs the rules over runs need: three comparisons, because two may agree by chance.
inline constexpr std::size_t kFewestRuns = 4;
inline constexpr std::size_t kFewestComparisons = kFewestRuns - 1;

// Fails: a source that cannot be read.
Result<Evidence> ReadEvidence(source::Source& source, const Check& check);

Moves MovesOf(const Row& row);
// The runs that have it, as places; ascending.
std::vector<std::size_t> RunsOf(const Row& row);
// Whether all its elements have one value that is the same in all runs that have it.
bool IsConstant(const Row& row);
bool IsZero(const Row& row);
// Whether an input is a parameter or buffer of a model, which has a name there.
bool IsNamedInput(std::string_view name);

// The row that an earlier run made and whose elements an input still has, as a place; SIZE_MAX:
// none.
std::size_t MadeBefore(const Log& log, const Row& input);

// "replay 12 of bs=8", "call 3"; with the rank, if there is one.
std::string RunText(const Log& log, std::size_t run);
// "every replay", "every call".
std::string RunsWord(const Log& log, std::size_t count);

}  // namespace cgdebug::analysis::why
