// detectors.h: the list of those that find causes. A new one is a file with one function, and a
// line in detectors.cpp.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/why/evidence.h"
#include "client/analysis/why/why.h"

namespace cgdebug::analysis::why {

// What a detector found.
struct Found {
  std::vector<Finding> findings = {};
  std::string clean = {};  // what it looked at, if it found nothing; empty: nothing of its kind
  std::string not_looked = {};  // what it could not look at, and why; empty: nothing
  std::string not_asked = {};   // what it would look at if it were recorded, and how to
};

// A pure function of the evidence.
using Detector = Found (*)(const Evidence&);

// In the order of their findings, among those of one level.
std::span<const Detector> Detectors();

Found FindNonfinite(const Evidence& evidence);
Found FindFailedChecks(const Evidence& evidence);
Found FindFailedKernels(const Evidence& evidence);
Found FindUnequalReplicas(const Evidence& evidence);
Found FindUnorderedOps(const Evidence& evidence);
Found FindIdleOptimizer(const Evidence& evidence);
Found FindRepeatedNoise(const Evidence& evidence);
Found FindFrozenInputs(const Evidence& evidence);
Found FindStaleOutputs(const Evidence& evidence);
Found FindDeadLayers(const Evidence& evidence);
Found FindUntrained(const Evidence& evidence);
Found FindUnread(const Evidence& evidence);
Found FindMovedPointers(const Evidence& evidence);
Found FindPaddingLeaks(const Evidence& evidence);
Found FindTornInputs(const Evidence& evidence);
Found FindUnreplayed(const Evidence& evidence);
Found FindGrowth(const Evidence& evidence);
Found FindUnlikeRanks(const Evidence& evidence);
Found FindHangs(const Evidence& evidence);
Found FindLostWrites(const Evidence& evidence);
Found FindOverwritten(const Evidence& evidence);
Found FindForeignWrites(const Evidence& evidence);
Found FindZeroWeights(const Evidence& evidence);
Found FindBrokenCalls(const Evidence& evidence);
Found FindBadCaptures(const Evidence& evidence);

// --- what they share
// ------------------------------------------------------------------------------

// Calls see(log_place, log, place, row) for each row of each log.
template <typename See>
void ForEachRow(const Evidence& evidence, See see) {
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      see(log_place, log, place, log.rows[place]);
    }
  }
}
// Whether a row of that op shows memory that no op wrote (python/cgdebug/_op_log/rows/rereads.py).
constexpr bool IsOverwritten(std::string_view op) { return op == "overwritten"; }
// Whether snapshots of it are lost, damaged or cut off, so that what is not there may have been.
bool HasLosses(const Evidence& evidence);
// The same without what a ring no longer keeps, which is older than what it has.
bool MayLackNewest(const Evidence& evidence);
// "1 row follows", "3 rows follow"; `one` is "row follows", `several` "rows follow".
std::string CountText(std::size_t count, std::string_view one, std::string_view several);
// Sets Found::clean if nothing was found in what was looked at: as CountText().
void SetClean(std::size_t looked_at, std::string_view one, std::string_view several, Found* answer);
// What the notes of graphs amount to: as SetClean(), or `what` was not looked at. Nothing without a
// graph that has notes.
template <typename Notes>
void SetCleanOrNotLooked(const Notes& notes, std::string_view one, std::string_view several,
                         std::string_view what, Found* answer) {
  if (notes.graphs.empty()) return;
  if (notes.complete()) {
    SetClean(notes.graphs.size(), one, several, answer);
    return;
  }
  answer->not_looked = std::string(what) + ": " + notes.not_looked.front();
  if (const std::size_t more = notes.not_looked.size() - 1; more > 0) {
    answer->not_looked += "; and " + CountText(more, "reason more", "reasons more");
  }
}
Place PlaceAt(const Evidence& evidence, std::size_t log, std::size_t row, std::size_t run);
// "fwd/layers.3/mm_0".
std::string RowText(const Evidence& evidence, std::size_t log, std::size_t row);
// "in/a, in/b and 3 more".
std::string NamesText(const std::vector<std::string>& names, std::size_t most = 3);
// "layers.3.weight" of its row "in/layers.3.weight".
std::string ParameterName(const Evidence& evidence, const Row& row);
// "it reads in/a, which ..." of an input in a run; `what` is the rest of the sentence.
Fact ReadFact(const Evidence& evidence, std::size_t log, std::size_t input, std::size_t run,
              std::string_view what);
// Whether it has the name of an op that a module calls: "fwd/layers.3/mm_0", not "fwd/mm_0".
bool IsOfModule(const Evidence& evidence, const Row& row);
// Whether it is a parameter that an optimizer reads.
bool IsStepped(const Evidence& evidence, const Log& log, const Row& row);
// The rows that are made of `row`, in the order of the log.
std::vector<std::size_t> DescendantsOf(const Log& log, std::size_t row);
// Whether one of `prefix`es begins the name of a row that a run has: "opt/", "bwd/".
bool HasPhase(const Evidence& evidence, const Log& log, std::size_t run, std::string_view prefix);

}  // namespace cgdebug::analysis::why
