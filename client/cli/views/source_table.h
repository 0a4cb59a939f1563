// source_table.h: the probes of a source as tables.
#pragma once

#include <string>

#include "client/analysis/align.h"
#include "client/analysis/json_number.h"
#include "client/cli/context.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// Whether a probe and a rank of it do not say yet whose tensor is meant.
bool HasSeveralJobs(const source::Source& source);

// A probe with more graphs and shapes than this takes one line for all of them, unless a table is
// to be whole.
inline constexpr std::size_t kMostLinesOfAProbe = 3;

// What such a line says of its graphs or shapes: "3 saw NaN or Inf, first bs=16 @20  -v: each".
// `bad`: how many had NaN or Inf, the first of them at `replay` in the one with `qualifier`.
std::string FoldedFindings(std::uint64_t bad, const std::string& qualifier, std::uint64_t replay,
                           const Style& style);

// One line per slot: type, device, replays, losses, the last snapshot in one line.
Result<TextTable> SlotTable(source::Source& source, const analysis::Scope& scope,
                            const Style& style, bool is_whole);
Result<Json> SlotsJson(source::Source& source, const analysis::Scope& scope);

// The same with the statistics over all replays, and a sparkline of the largest magnitude.
Result<TextTable> StatsTable(source::Source& source, const analysis::Scope& scope,
                             const Style& style, bool is_whole);
Result<Json> StatsJson(source::Source& source, const analysis::Scope& scope);

// `columns` bars for `values`; NaN and Inf are '!'.
std::string Sparkline(const std::vector<double>& values, std::size_t columns);

}  // namespace cgdebug::cli
