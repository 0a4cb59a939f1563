// Results of layers that nobody reads, though what comes after them goes on.
#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {

Found FindUnread(const Evidence& evidence) {
  const auto is_layer = [&](const Row& row) {
    return ops::HasTrait(ops::OpTrait::kProduct, row.op) &&
           evidence.NameOf(row).starts_with("fwd/");
  };
  const auto site_of = [&](const Row& row) -> const std::string& {
    return evidence.source->slots()[row.slot].site;
  };
  // Whether another product of the same line with the same weights is read: a result and its
  // tangent (torch.func.jvp), of which a program may want one alone.
  const auto has_twin = [&](const Log& log, const Row& row) {
    return !row.inputs.empty() && std::ranges::any_of(log.rows, [&](const Row& other) {
      return is_layer(other) && !other.readers.empty() && !other.inputs.empty() &&
             other.inputs.back() == row.inputs.back() && site_of(other) == site_of(row);
    });
  };
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    // In each run, behind the last layer that is read, all are results.
    std::vector<std::size_t> end(log.runs.size(), 0);
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      if (!is_layer(log.rows[place])) continue;
      for (const std::size_t run : RunsOf(log.rows[place])) {
        const bool is_read = std::ranges::any_of(log.rows[place].readers, [&](std::size_t reader) {
          return log.rows[reader].at[run].is_here;
        });
        if (is_read) end[run] = place;
      }
    }
    std::vector<std::size_t> unread;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      if (!is_layer(row) || (row.readers.empty() && has_twin(log, row))) continue;
      ++looked_at;
      const auto goes_on = [&](std::size_t run) { return place < end[run]; };
      if (row.readers.empty() && std::ranges::any_of(RunsOf(row), goes_on)) unread.push_back(place);
    }
    if (unread.empty()) continue;
    std::vector<std::string> names;
    for (const std::size_t row : unread) names.push_back(RowText(evidence, log_place, row));
    Finding finding{.level = Level::kConsistent,
                    .kind = "unread",
                    .place = PlaceAt(evidence, log_place, unread.front(), SIZE_MAX),
                    .sentence = fmt::format("nobody reads {}, and layers come after {}",
                                            NamesText(names), unread.size() == 1 ? "it" : "them"),
                    .refute = "a result of the model, or an op in no row that reads it"};
    for (std::size_t i = 0; i < unread.size(); ++i) {
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, unread[i], SIZE_MAX),
           fmt::format("{} ({}): no row reads it", names[i], log.rows[unread[i]].op)});
    }
    found.findings.push_back(std::move(finding));
  }
  SetClean(looked_at, "layer gives what other ops read", "layers give what other ops read", &found);
  return found;
}

}  // namespace cgdebug::analysis::why
