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

// One line a slot: type, device, replays, losses, the last snapshot in one line.
Result<TextTable> SlotTable(source::Source& source, const analysis::Scope& scope,
                            const Style& style);
Result<Json> SlotsJson(source::Source& source, const analysis::Scope& scope);

// The same with the statistics over all replays, and a sparkline of the largest magnitude.
Result<TextTable> StatsTable(source::Source& source, const analysis::Scope& scope,
                             const Style& style);
Result<Json> StatsJson(source::Source& source, const analysis::Scope& scope);

// `columns` bars for `values`; NaN and Inf are '!'.
std::string Sparkline(const std::vector<double>& values, std::size_t columns);

}  // namespace cgdebug::cli
