// Layers that give one value whatever they are given.
#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {
Found FindDeadLayers(const Evidence& evidence) {
  constexpr std::uint64_t kManyElements = 64;
  Found found;
  std::size_t looked_at = 0;
  ForEachRow(evidence, [&](std::size_t log_place, const Log& log, std::size_t place,
                           const Row& row) {
    const bool is_rectifier = ops::HasTrait(ops::OpTrait::kRectifier, row.op);
    if (!is_rectifier && !ops::HasTrait(ops::OpTrait::kPassing, row.op)) return;
    if (!evidence.NameOf(row).starts_with("fwd/") || !evidence.IsFloating(row)) return;
    const std::vector<std::size_t> runs = RunsOf(row);
    if (row.count < 2 || runs.size() < kFewestRuns) return;
    ++looked_at;
    // What is one value because all it reads is one follows from that.
    const bool has_moving_input = std::ranges::any_of(row.inputs, [&](std::size_t input) {
      return MovesOf(log.rows[input]).changed > 0 && !IsConstant(log.rows[input]);
    });
    const bool has_constant_input = std::ranges::any_of(row.inputs, [&](std::size_t input) {
      return !log.rows[input].is_input() && IsZero(log.rows[input]);
    });
    if (!IsConstant(row) || !has_moving_input || has_constant_input) return;
    // Where a distance is rectified, as in a loss with a margin, 0 is what is wanted.
    const bool is_of_weights = std::ranges::any_of(row.inputs, [&](std::size_t input) {
      return ops::HasTrait(ops::OpTrait::kWeighted, log.rows[input].op);
    });
    const bool is_dead = is_rectifier && is_of_weights && IsZero(row) && row.count >= kManyElements;
    const Seen& last = row.at[runs.back()];
    Finding finding{
        .level = is_dead ? Level::kShown : Level::kConsistent,
        .kind = "dead_layer",
        .place = PlaceAt(evidence, log_place, place, runs.back()),
        .sentence = fmt::format("{} is {:.3g} throughout, in all of {}, though what it reads "
                                "changes: nothing of its input gets through",
                                evidence.NameOf(row), last.min, RunsWord(log, runs.size())),
        .refute = is_rectifier ? "a call in which an element of it is not 0"
                               : "weights that begin as 0 on purpose"};
    for (const std::size_t input : row.inputs) {
      const Seen& seen = log.rows[input].at[runs.back()];
      if (!seen.is_here) continue;
      finding.facts.push_back(ReadFact(
          evidence, log_place, input, runs.back(),
          fmt::format("{:.3g} to {:.3g} in {}", seen.min, seen.max, RunText(log, runs.back()))));
    }
    found.findings.push_back(std::move(finding));
  });
  SetClean(looked_at, "layer gives numbers other than 0", "layers give numbers other than 0",
           &found);
  return found;
}

}  // namespace cgdebug::analysis::why
