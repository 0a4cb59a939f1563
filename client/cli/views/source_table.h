// source_table.h: probes as tables: those of a source, and those that the daemon lists.
#pragma once

#include <string>
#include <vector>

#include "client/analysis/align.h"
#include "client/analysis/json_number.h"
#include "client/cli/context.h"
#include "client/live/probe.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// Whether a probe and a rank are not enough to say which tensor is meant.
bool HasSeveralJobs(const source::Source& source);

// A probe with more graphs and shapes than this takes one line for all of them, unless a table is
// to be whole.
inline constexpr std::size_t kMostLinesOfAProbe = 3;

// One line per slot: type, device, replays, losses, the last snapshot in one line.
Result<TextTable> SlotTable(source::Source& source, const analysis::Scope& scope,
                            const Style& style, bool is_whole);
Result<Json> SlotsJson(source::Source& source, const analysis::Scope& scope);

// The same of live jobs, with lane, policy, actions and ring. The probes are in the order of the
// lines.
TextTable LiveTable(const std::vector<live::Probe>& probes, const Style& style, bool with_session,
                    bool is_whole);

// kAbsMax, kNonfinite and kLost: the largest number first, else as in the graph.
enum class StatsOrder { kGraph, kName, kAbsMax, kNonfinite, kLost };

// One line per slot with the statistics over all replays, and a sparkline of the largest magnitude.
Result<TextTable> StatsTable(source::Source& source, const analysis::Scope& scope,
                             const Style& style, bool is_whole,
                             StatsOrder order = StatsOrder::kGraph);
Result<Json> StatsJson(source::Source& source, const analysis::Scope& scope,
                       StatsOrder order = StatsOrder::kGraph);

// `columns` bars for `values`; NaN and Inf are '!'.
std::string Sparkline(const std::vector<double>& values, std::size_t columns);

}  // namespace cgdebug::cli
