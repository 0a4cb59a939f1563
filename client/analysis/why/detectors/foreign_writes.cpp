// Weights that change although no op that is logged writes them.
#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

// Whether a row of the log may have written it.
bool IsWritten(const Log& log, std::size_t place) {
  const auto writes = [&](const Row& row) {
    const bool is_in_place = BaseOf(row.op).ends_with('_') && !row.inputs.empty();
    return row.overwrites == place || (is_in_place && row.inputs.front() == place);
  };
  return std::ranges::any_of(log.rows, writes);
}

}  // namespace

Found FindForeignWrites(const Evidence& evidence) {
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    const bool is_trained = std::ranges::any_of(log.rows, [&](const Row& row) {
      return evidence.NameOf(row).starts_with("opt/") || evidence.NameOf(row).starts_with("bwd/");
    });
    if (is_trained || HasLosses(evidence)) continue;
    std::vector<std::size_t> moving;
    std::size_t still = 0;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      const std::string& name = evidence.NameOf(row);
      const bool is_weight = name.ends_with("weight") || name.ends_with("bias");
      if (!row.is_input() || !IsNamedInput(name) || !is_weight) continue;
      const Moves moves = MovesOf(row);
      still += moves.is_still(kFewestComparisons);
      if (moves.changed >= kFewestComparisons && !IsWritten(log, place)) moving.push_back(place);
    }
    looked_at += still;
    // All of them change where another process trains them.
    if (moving.empty() || moving.size() > still) continue;
    std::vector<std::string> names;
    for (const std::size_t row : moving) names.push_back(RowText(evidence, log_place, row));
    const Row& first = log.rows[moving.front()];
    Finding finding{.level = Level::kConsistent,
                    .kind = "foreign_write",
                    .place = PlaceAt(evidence, log_place, moving.front(), RunsOf(first).back()),
                    .sentence = fmt::format(
                        "{} {} though no op of the log writes {}: something else writes "
                        "into {} memory",
                        NamesText(names), moving.size() == 1 ? "changes" : "change",
                        moving.size() == 1 ? "it" : "them", moving.size() == 1 ? "its" : "their"),
                    .follows = DescendantsOf(log, moving.front()),
                    .refute = "a program that writes these weights between two calls, past torch"};
    for (const std::size_t row : moving) {
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, row, RunsOf(log.rows[row]).back()),
           fmt::format("{} changes {} times in {}; {} stay the same",
                       RowText(evidence, log_place, row), MovesOf(log.rows[row]).changed,
                       RunsWord(log, RunsOf(log.rows[row]).size()),
                       CountText(still, "weight", "weights"))});
    }
    found.findings.push_back(std::move(finding));
  }
  SetClean(looked_at, "weight stays while nothing is trained",
           "weights stay while nothing is trained", &found);
  return found;
}

}  // namespace cgdebug::analysis::why
