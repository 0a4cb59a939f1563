// Static inputs of a graph that something else changes while a replay reads them.
#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

struct Torn {
  std::size_t row = 0;
  std::size_t run = 0;    // the first
  std::size_t count = 0;  // of runs
};

// Nothing has count 0.
Torn TornRunsOf(const Row& row, std::size_t place) {
  Torn torn{.row = place};
  for (std::size_t run = 0; run < row.at_end.size(); ++run) {
    if (!row.at_end[run].is_here || row.at_end[run].change != Change::kChanged) continue;
    if (torn.count++ == 0) torn.run = run;
  }
  return torn;
}

std::string HashesText(const AtEnd& end) {
  return fmt::format("hash {:016x} where the first op reads it, {:016x} at the end of the graph",
                     end.hash_then, end.hash);
}

}  // namespace

Found FindTornInputs(const Evidence& evidence) {
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    std::vector<Torn> torn;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      if (log.rows[place].at_end.empty()) continue;
      ++looked_at;
      if (const Torn one = TornRunsOf(log.rows[place], place); one.count > 0) torn.push_back(one);
    }
    if (torn.empty()) continue;
    std::ranges::stable_sort(torn, {}, &Torn::run);
    const Torn& first = torn.front();
    const Row& row = log.rows[first.row];
    Finding finding{
        // A kernel that no row shows may have written it.
        .level = log.has_unseen ? Level::kConsistent : Level::kShown,
        .kind = "torn_input",
        .place = PlaceAt(evidence, log_place, first.row, first.run),
        .sentence = fmt::format("the input {} changed while {} ran, and no op of the graph writes "
                                "it: {}",
                                evidence.NameOf(row), RunText(log, first.run),
                                HashesText(row.at_end[first.run])),
        .follows = DescendantsOf(log, first.row),
        .refute =
            log.has_unseen
                ? "a kernel of the graph that no row shows, and that writes it"
                : "a copy that waits, by an event of the graph, for the last op that reads it"};
    for (const Torn& one : torn) {
      const Row& input = log.rows[one.row];
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, one.row, one.run),
           fmt::format("{} changed in {} of {}, first in {}: {}", evidence.NameOf(input), one.count,
                       RunsWord(log, RunsOf(input).size()), RunText(log, one.run),
                       HashesText(input.at_end[one.run]))});
    }
    found.findings.push_back(std::move(finding));
  }
  SetClean(looked_at, "input stays the same while its graph runs",
           "inputs stay the same while their graphs run", &found);
  return found;
}

}  // namespace cgdebug::analysis::why
