// Random numbers that come again.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {
namespace {

bool IsDropout(const Row& row) { return ops::HasTrait(ops::OpTrait::kDropout, row.op); }

// How unlikely it is that two rows of this kind are equal by chance, in bits.
double BitsOf(const Evidence& evidence, const Row& row) {
  const auto here = std::ranges::find_if(row.at, &Seen::is_here);
  if (here == row.at.end() || row.count == 0 || !(here->min < here->max)) return 0;
  const auto count = static_cast<double>(row.count);
  if (IsDropout(row)) {
    const double zeros = static_cast<double>(here->zero) / count;
    return -count * std::log2(zeros * zeros + (1 - zeros) * (1 - zeros));
  }
  if (evidence.IsFloating(row)) return 7 * count;  // bfloat16 has no more digits
  return count * std::log2(here->max - here->min + 1) / 2;
}

}  // namespace

Found FindRepeatedNoise(const Evidence& evidence) {
  constexpr double kCertain = 64;  // bits
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    std::vector<std::size_t> rows;
    std::size_t runs = 0;
    bool is_dropout = false;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      if (!ops::HasTrait(ops::OpTrait::kNoise, row.op)) continue;
      const Moves moves = MovesOf(row);
      if (moves.same + moves.changed >= kFewestComparisons) ++looked_at;
      const double bits = BitsOf(evidence, row) * static_cast<double>(moves.same);
      if (!moves.is_still(kFewestComparisons) || bits < kCertain) continue;
      rows.push_back(place);
      runs = std::max(runs, moves.same + 1);
      is_dropout = is_dropout || IsDropout(row);
    }
    if (rows.empty()) continue;
    std::vector<std::string> names;
    for (const std::size_t row : rows) names.push_back(RowText(evidence, log_place, row));
    Finding finding{
        .level = is_dropout ? Level::kShown : Level::kConsistent,
        .kind = "repeated_noise",
        .place = PlaceAt(evidence, log_place, rows.front(), SIZE_MAX),
        .sentence = fmt::format("{} {} the same random numbers in each of {}", NamesText(names),
                                rows.size() == 1 ? "is" : "are", RunsWord(log, runs))};
    for (const std::size_t row : rows) {
      const std::vector<std::size_t> all = RunsOf(log.rows[row]);
      finding.facts.push_back({PlaceAt(evidence, log_place, row, all.back()),
                               fmt::format("{}: {} elements, bit for bit the same in {}",
                                           RowText(evidence, log_place, row), log.rows[row].count,
                                           RunsWord(log, all.size()))});
    }
    finding.refute = log.graph_id == 0
                         ? "a seed that the program sets before each call on purpose"
                         : "a seed on purpose; else the generator is not registered with the graph";
    found.findings.push_back(std::move(finding));
  }
  SetClean(looked_at, "random row is not repeated", "random rows are not repeated", &found);
  return found;
}

}  // namespace cgdebug::analysis::why
