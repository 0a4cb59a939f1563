// Ops whose result stays the same although what they read changes.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {
namespace {

bool MayStay(const Evidence& evidence, const Row& row) {
  const std::string& name = evidence.NameOf(row);
  // What gathers in place, and what an optimizer steps, may move by less than a digit.
  const bool is_state =
      name.starts_with("opt/") || name.starts_with("scaler/") || name.starts_with("clip/");
  return row.is_input() || IsOverwritten(row.op) || is_state || !evidence.IsFloating(row) ||
         row.count < 2 || ops::HasTrait(ops::OpTrait::kBlunt, row.op);
}

// The number of runs in which the row is the same as in the run before, although an input of
// floating type changed. -1: in some run the row changed, or it is not known whether it did.
int StaleRunsOf(const Evidence& evidence, const Log& log, const Row& row) {
  int stale = 0;
  std::optional<std::size_t> before;  // the last run that has the row
  for (std::size_t run = 0; run < row.at.size(); ++run) {
    const Seen& seen = row.at[run];
    if (!seen.is_here) continue;
    const std::optional<std::size_t> last = std::exchange(before, run);
    if (!last) continue;
    if (seen.change != Change::kSame) return -1;
    stale += std::ranges::any_of(row.inputs, [&](std::size_t input) {
      const std::vector<Seen>& at = log.rows[input].at;
      // Against that same run. An input that was there in between may have changed twice.
      const bool is_between = std::any_of(at.begin() + static_cast<std::ptrdiff_t>(*last) + 1,
                                          at.begin() + static_cast<std::ptrdiff_t>(run),
                                          [](const Seen& one) { return one.is_here; });
      return !is_between && at[run].change == Change::kChanged &&
             evidence.IsFloating(log.rows[input]);
    });
  }
  return stale;
}

// Whether a change of what it reads must change it: nothing in it is 0, and not only weights move,
// whose last digits a product may round away.
bool MustFollow(const Evidence& evidence, const Log& log, const Row& row) {
  const auto is_full = [&](std::size_t input) {
    return evidence.IsFloating(log.rows[input]) &&
           std::ranges::all_of(log.rows[input].at, [](const Seen& seen) {
             return seen.zero == 0 && seen.nonfinite() == 0;
           });
  };
  const auto is_moving_value = [&](std::size_t input) {
    return !IsNamedInput(evidence.NameOf(log.rows[input])) &&
           MovesOf(log.rows[input]).changed >= kFewestComparisons;
  };
  return ops::HasTrait(ops::OpTrait::kProduct, row.op) && row.is_covered &&
         std::ranges::all_of(row.inputs, is_full) &&
         std::ranges::any_of(row.inputs, is_moving_value);
}

}  // namespace

Found FindStaleOutputs(const Evidence& evidence) {
  Found found;
  std::size_t looked_at = 0;
  ForEachRow(evidence, [&](std::size_t log_place, const Log& log, std::size_t place,
                           const Row& row) {
    if (MayStay(evidence, row) || row.inputs.empty()) return;
    const std::vector<std::size_t> runs = RunsOf(row);
    if (runs.size() < kFewestRuns) return;
    ++looked_at;
    const int stale = StaleRunsOf(evidence, log, row);
    // Other detectors tell of constant results of torch's ops, and of NaN and Inf, though not of
    // statistics of a batch norm that are what they began as. That an op of
    // the user's ought to change they do not know.
    const std::string& name = evidence.NameOf(row);
    const bool is_statistic = name.ends_with(".running_mean") || name.ends_with(".running_var");
    const bool is_told = (IsConstant(row) && row.op.starts_with("aten.") && !is_statistic) ||
                         row.at[runs.back()].nonfinite() > 0;
    if (stale < static_cast<int>(kFewestComparisons) || is_told) return;
    Finding finding{
        .level = MustFollow(evidence, log, row) ? Level::kShown : Level::kConsistent,
        .kind = "stale_output",
        .place = PlaceAt(evidence, log_place, place, runs.back()),
        .sentence = fmt::format("{} ({}) does not follow: it is the same in {}, though what it "
                                "reads changes in {} of them",
                                evidence.NameOf(row), row.op, RunsWord(log, runs.size()), stale),
        .refute = "an op whose result does not depend on these values"};
    for (const std::size_t input : row.inputs) {
      finding.facts.push_back(
          ReadFact(evidence, log_place, input, runs.back(),
                   fmt::format("which changes {} times", MovesOf(log.rows[input]).changed)));
    }
    found.findings.push_back(std::move(finding));
  });
  SetClean(looked_at, "row changes with what it is made of",
           "rows change with what they are made of", &found);
  return found;
}

}  // namespace cgdebug::analysis::why
