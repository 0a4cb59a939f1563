// Weights that are all 0 when a training begins, so that nothing is learned until something else
// writes them.
#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

bool IsZeroIn(const Row& row, std::size_t run) {
  return row.at[run].is_here && row.at[run].zero == row.count;
}

// Whether the backward pass of a run has gradients, and all of them are 0.
bool HasZeroGradients(const Evidence& evidence, const Log& log, std::size_t run) {
  bool has_any = false;
  for (const Row& row : log.rows) {
    const bool is_of_module = evidence.NameOf(row).starts_with("bwd/") && IsOfModule(evidence, row);
    if (!is_of_module || !row.at[run].is_here || !evidence.IsFloating(row)) continue;
    if (!IsZeroIn(row, run)) return false;
    has_any = true;
  }
  return has_any;
}

}  // namespace

Found FindZeroWeights(const Evidence& evidence) {
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    if (log.runs.size() < kFewestRuns || !HasPhase(evidence, log, 0, "bwd/")) continue;
    std::vector<std::size_t> weights;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      const std::string& name = evidence.NameOf(row);
      if (row.is_input() && IsNamedInput(name) && name.ends_with("weight") && row.at[0].is_here) {
        weights.push_back(place);
      }
    }
    if (weights.size() < 2) continue;  // a single layer may begin as 0
    looked_at += weights.size();
    std::size_t zero_runs = 0;
    const auto all_zero = [&](std::size_t run) {
      return std::ranges::all_of(weights,
                                 [&](std::size_t place) { return IsZeroIn(log.rows[place], run); });
    };
    while (zero_runs < log.runs.size() && all_zero(zero_runs) &&
           HasZeroGradients(evidence, log, zero_runs)) {
      ++zero_runs;
    }
    if (zero_runs == 0) continue;
    Finding finding{
        .level = Level::kConsistent,
        .kind = "zero_weights",
        .place = PlaceAt(evidence, log_place, weights.front(), 0),
        .sentence = fmt::format("all {} weights are 0 {} {}, and so are all gradients: nothing is "
                                "learned until something writes them",
                                weights.size(), zero_runs == 1 ? "in" : "up to",
                                RunText(log, zero_runs - 1)),
        .refute = "weights that begin as 0 on purpose"};
    for (const std::size_t place : weights) {
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, place, 0),
           fmt::format("{}: {} elements, all 0", RowText(evidence, log_place, place),
                       log.rows[place].count)});
    }
    found.findings.push_back(std::move(finding));
  }
  SetClean(looked_at, "weight begins as other than 0", "weights do not all begin as 0", &found);
  return found;
}

}  // namespace cgdebug::analysis::why
