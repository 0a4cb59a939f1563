// Inputs that stay the same in all runs although others change.
#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {
namespace {

// Whether all its elements are one value in each run, as those of a mask of ones are.
bool IsUniform(const Row& row) {
  return row.count > 1 && std::ranges::all_of(row.at, [](const Seen& seen) {
           return !seen.is_here || seen.min == seen.max;
         });
}

// Whether it is state that torch's GradScaler or an optimizer keeps of its steps, which it writes
// itself. What it only reads, such as the learning rate, is an input.
bool IsStateOfFramework(const Evidence& evidence, const Log& log, const Row& row) {
  std::string_view name = evidence.NameOf(row);
  if (name.starts_with("in/scaler/")) return true;
  if (!name.starts_with("in/opt/")) return false;
  name.remove_prefix(3);
  return std::ranges::any_of(row.readers, [&](std::size_t place) {
    const Row& reader = log.rows[place];
    return BaseOf(reader.op).ends_with('_') && name.starts_with(evidence.NameOf(reader) + ".self");
  });
}

// Whether it is labels or indices that the program draws between two calls, and an op outside of
// all modules reads, as a loss does: another batch, though no input.
bool IsDrawnBetweenCalls(const Evidence& evidence, const Log& log, const Row& row) {
  const auto is_outside = [&](const Row& one) {
    const std::string& name = evidence.NameOf(one);
    return name.starts_with("fwd/") && name.rfind('/') == name.find('/');
  };
  return log.graph_id == 0 && ops::HasTrait(ops::OpTrait::kNoise, row.op) && row.inputs.empty() &&
         !evidence.IsFloating(row) && is_outside(row) &&
         std::ranges::any_of(row.readers,
                             [&](std::size_t reader) { return is_outside(log.rows[reader]); });
}

}  // namespace

Found FindFrozenInputs(const Evidence& evidence) {
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    std::vector<std::size_t> frozen;
    const Row* sibling = nullptr;  // that changes most often
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      const bool is_input = row.is_input() && !IsNamedInput(evidence.NameOf(row)) &&
                            !IsStateOfFramework(evidence, log, row);
      if (!is_input && !IsDrawnBetweenCalls(evidence, log, row)) continue;
      const Moves moves = MovesOf(row);
      if (moves.same + moves.changed < kFewestComparisons) continue;
      looked_at += is_input;
      if (moves.is_still(kFewestComparisons)) {
        if (is_input) frozen.push_back(place);
      } else if (sibling == nullptr || MovesOf(*sibling).changed < moves.changed) {
        sibling = &row;
      }
    }
    if (frozen.empty() || sibling == nullptr) continue;
    // An index or a position is seldom meant to stay; what is one value throughout often is.
    std::ranges::stable_sort(frozen, {}, [&](std::size_t place) {
      const Row& row = log.rows[place];
      return 2 * static_cast<int>(IsUniform(row)) + static_cast<int>(evidence.IsFloating(row));
    });
    const Row& first = log.rows[frozen.front()];
    const Moves moves = MovesOf(*sibling);
    Finding finding{
        .level = Level::kConsistent,
        .kind = "frozen_input",
        .place = PlaceAt(evidence, log_place, frozen.front(), SIZE_MAX),
        .sentence = fmt::format("the input {} is the same in {}, in which {} changes {} times",
                                evidence.NameOf(first), RunsWord(log, RunsOf(first).size()),
                                evidence.NameOf(*sibling), moves.changed)};
    if (frozen.size() > 1) {
      finding.sentence += fmt::format("; so {} {} more input{}", frozen.size() == 2 ? "is" : "are",
                                      frozen.size() - 1, frozen.size() == 2 ? "" : "s");
    }
    for (const std::size_t place : frozen) {
      const Row& row = log.rows[place];
      const Seen& seen = row.at[RunsOf(row).back()];
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, place, RunsOf(row).back()),
           fmt::format("{}: {} element{}, {:.3g} to {:.3g}, bit for bit the same",
                       evidence.NameOf(row), row.count, row.count == 1 ? "" : "s", seen.min,
                       seen.max)});
    }
    finding.refute = "a constant of the program, such as a table or a mask";
    found.findings.push_back(std::move(finding));
  }
  SetClean(looked_at, "input changes when the others do", "inputs change when the others do",
           &found);
  return found;
}

}  // namespace cgdebug::analysis::why
