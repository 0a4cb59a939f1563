// stats_table.h: the statistics of a source over all replays as a table.
#pragma once

#include <string>
#include <vector>

#include "client/analysis/diff/align.h"
#include "client/analysis/json_number.h"
#include "client/cli/views/terminal.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// kAbsMax, kNonfinite and kMissing: the largest number first, else as in the graph.
enum class StatsOrder { kGraph, kName, kAbsMax, kNonfinite, kMissing };

struct StatsView {
  StatsOrder order = StatsOrder::kGraph;
  bool only_nonfinite = false;  // leaves out probes whose replays in the scope are finite
};

// One line per slot with the statistics over all replays, and a sparkline of the largest magnitude.
Result<TextTable> StatsTable(source::Source& source, const analysis::Scope& scope,
                             const Style& style, bool is_whole, const StatsView& view = {});
Result<Json> StatsJson(source::Source& source, const analysis::Scope& scope,
                       const StatsView& view = {});

// `columns` bars for `values`; NaN and Inf are '!'.
std::string Sparkline(const std::vector<double>& values, std::size_t columns);

}  // namespace cgdebug::cli
