// Values that grow from run to run so that they will soon be too large for their dtype.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "client/analysis/why/detectors.h"
#include "proto/layout/dtype.h"

namespace cgdebug::analysis::why {
namespace {

constexpr std::size_t kFewestSteps = 6;  // of growth, one after another
constexpr double kLeastGrowth = 1.2;     // of each
constexpr double kMostAhead = 64;        // runs

struct Growth {
  std::vector<double> values;  // the largest of each run
  double factor = 1;           // of a run
  double ahead = 0;            // runs until it is too large
};

// A sum of steps grows as well, but slower and slower: here each step multiplies.
std::optional<Growth> GrowthOf(const Evidence& evidence, const Log& log, const Row& row) {
  const layout::DtypeInfo* dtype = layout::FindDtype(evidence.DtypeOf(row));
  const std::vector<std::size_t> runs = RunsOf(row);
  if (dtype == nullptr || !dtype->is_floating || runs.size() <= kFewestSteps) return {};
  if (runs.back() + 2 < log.runs.size()) return {};  // it has ended
  Growth growth;
  for (std::size_t i = runs.size() - kFewestSteps - 1; i < runs.size(); ++i) {
    const Seen& seen = row.at[runs[i]];
    if (seen.nonfinite() > 0 || !(seen.abs_max > 0)) return {};
    if (!growth.values.empty() && seen.abs_max < kLeastGrowth * growth.values.back()) return {};
    growth.values.push_back(seen.abs_max);
  }
  const double last = growth.values.back();
  const double rate = std::log(last / growth.values.front()) / kFewestSteps;
  const double last_rate = std::log(last / growth.values[kFewestSteps - 1]);
  growth.factor = std::exp(rate);
  growth.ahead = std::ceil(std::log(dtype->max_finite / last) / rate);
  if (2 * last_rate < rate || growth.ahead > kMostAhead) return {};
  return growth;
}

}  // namespace

Found FindGrowth(const Evidence& evidence) {
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    const bool has_overflow = std::ranges::any_of(
        log.rows, [](const Row& row) { return std::ranges::any_of(row.at, &Seen::is_bad); });
    if (has_overflow) continue;  // which is told, with how it grew
    std::vector<std::pair<std::size_t, Growth>> growing;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      looked_at += RunsOf(row).size() > kFewestSteps && evidence.IsFloating(row);
      if (std::optional<Growth> growth = GrowthOf(evidence, log, row)) {
        growing.emplace_back(place, *std::move(growth));
      }
    }
    if (growing.empty()) continue;
    const auto& [first, growth] = growing.front();
    const Row& row = log.rows[first];
    Finding finding{
        .level = Level::kConsistent,
        .kind = "growth",
        .place = PlaceAt(evidence, log_place, first, RunsOf(row).back()),
        .sentence = fmt::format(
            "{} grows {:.2g}-fold in each of the last {}: {:.3g} then, {:.3g} now. So it is too "
            "large for {} in {}",
            RowText(evidence, log_place, first), growth.factor, RunsWord(log, kFewestSteps),
            growth.values.front(), growth.values.back(),
            layout::FindDtype(evidence.DtypeOf(row))->name,
            RunsWord(log, static_cast<std::size_t>(growth.ahead))),
        .refute = "values that level off"};
    for (const auto& [place, one] : growing) {
      std::vector<std::string> values;
      for (const double value : one.values) values.push_back(fmt::format("{:.3g}", value));
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, place, RunsOf(log.rows[place]).back()),
           fmt::format("{}: {}", RowText(evidence, log_place, place), fmt::join(values, ", "))});
    }
    found.findings.push_back(std::move(finding));
  }
  SetClean(looked_at, "row does not grow to an overflow", "rows do not grow to an overflow",
           &found);
  return found;
}

}  // namespace cgdebug::analysis::why
