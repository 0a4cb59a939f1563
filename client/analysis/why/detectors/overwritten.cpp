// Memory that something else than an op writes, between the op that wrote it and one that reads it.
#include <fmt/format.h>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

// The first run that shows what was written and what is read; SIZE_MAX: none does.
std::size_t RunOf(const Log& log, const Row& row) {
  const Row& before = log.rows[row.inputs.front()];
  for (const std::size_t run : RunsOf(row)) {
    if (before.at[run].is_here) return run;
  }
  return SIZE_MAX;
}

}  // namespace

Found FindOverwritten(const Evidence& evidence) {
  Found found;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    std::vector<std::size_t> rows;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      const bool is_read = !row.inputs.empty() && !row.readers.empty();
      if (IsOverwritten(row.op) && is_read && RunOf(log, row) != SIZE_MAX) rows.push_back(place);
    }
    if (rows.empty()) continue;
    const auto text_of = [&](std::size_t place) { return RowText(evidence, log_place, place); };
    const Row& first = log.rows[rows.front()];
    Finding finding{
        .level = Level::kConsistent,
        .kind = "overwritten",
        .place = PlaceAt(evidence, log_place, rows.front(), RunOf(log, first)),
        .sentence = fmt::format(
            "{} reads what no op wrote: something else has written over {} before, in {} of {}",
            text_of(first.readers.front()), text_of(first.inputs.front()), RunsOf(first).size(),
            RunsWord(log, RunsOf(log.rows[first.inputs.front()]).size())),
        .follows = DescendantsOf(log, rows.front()),
        .refute = "a program that writes there itself past torch, as through numpy()"};
    for (const std::size_t place : rows) {
      const Row& row = log.rows[place];
      const std::size_t run = RunOf(log, row);
      const Seen &before = log.rows[row.inputs.front()].at[run], &now = row.at[run];
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, place, run),
           fmt::format("{} was {:.6g} to {:.6g} when it was written, and {:.6g} to {:.6g} when {} "
                       "read it in {}",
                       text_of(row.inputs.front()), before.min, before.max, now.min, now.max,
                       text_of(row.readers.front()), RunText(log, run))});
    }
    found.findings.push_back(std::move(finding));
  }
  return found;
}

}  // namespace cgdebug::analysis::why
