// Calls that end where an op was given an index beyond what it indexes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

// The greatest size of a row's dimensions: no index beyond it can be right.
std::uint64_t GreatestSize(const Evidence& evidence, const Row& row) {
  const std::vector<std::uint64_t>& shape = evidence.SlotOf(row).shape;
  return shape.empty() ? 1 : *std::ranges::max_element(shape);
}

// The input of an op that takes elements of another one, if its indices are out of range in a run.
std::optional<std::size_t> BadIndexOf(const Evidence& evidence, const Log& log, const Row& row,
                                      std::size_t run) {
  constexpr std::array kTakers = {std::string_view("embedding"), std::string_view("gather"),
                                  std::string_view("index"), std::string_view("index_select")};
  const bool takes = std::ranges::find(kTakers, BaseOf(row.op)) != kTakers.end();
  if (!takes || row.inputs.empty()) return std::nullopt;
  const auto size = static_cast<double>(GreatestSize(evidence, log.rows[row.inputs.front()]));
  for (std::size_t i = 1; i < row.inputs.size(); ++i) {
    const Row& index = log.rows[row.inputs[i]];
    const Seen& seen = index.at[run];
    const layout::Dtype dtype = evidence.DtypeOf(index);
    const bool is_index = dtype == layout::Dtype::kInt64 || dtype == layout::Dtype::kInt32;
    if (is_index && seen.is_here && (seen.max >= size || seen.min < -size)) return row.inputs[i];
  }
  return std::nullopt;
}

}  // namespace

Found FindBrokenCalls(const Evidence& evidence) {
  Found found;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    if (log.graph_id != 0) continue;  // a kernel that fails there is told by others
    for (std::size_t run = 0; run < log.runs.size() && found.findings.empty(); ++run) {
      for (std::size_t place = 0; place < log.rows.size(); ++place) {
        const Row& row = log.rows[place];
        // An op that raises has no row.
        if (row.at[run].is_here) continue;
        const std::optional<std::size_t> index = BadIndexOf(evidence, log, row, run);
        if (!index) continue;
        const Row& bad = log.rows[*index];
        const Row& taken = log.rows[row.inputs.front()];
        Finding finding{
            .level = Level::kShown,
            .kind = "bad_index",
            .place = PlaceAt(evidence, log_place, *index, run),
            .sentence = fmt::format(
                "{} is given indices from {:.9g} to {:.9g} in {}, and no dimension of {} is larger "
                "than {}: the call ends there",
                RowText(evidence, log_place, place), bad.at[run].min, bad.at[run].max,
                RunText(log, run), RowText(evidence, log_place, row.inputs.front()),
                GreatestSize(evidence, taken)),
            .refute = "none: such an index takes what is not there"};
        finding.facts.push_back({PlaceAt(evidence, log_place, *index, run),
                                 fmt::format("{} holds the indices, and {} has no row in this call",
                                             RowText(evidence, log_place, *index),
                                             RowText(evidence, log_place, place))});
        found.findings.push_back(std::move(finding));
        break;
      }
    }
  }
  return found;
}

}  // namespace cgdebug::analysis::why
