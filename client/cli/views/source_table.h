// source_table.h: the slots of a source as a table.
#pragma once

#include "client/analysis/diff/align.h"
#include "client/analysis/json_number.h"
#include "client/cli/views/terminal.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// One line per slot: type, device, replays, losses, the last snapshot in one line.
Result<TextTable> SlotTable(source::Source& source, const analysis::Scope& scope,
                            const Style& style, bool is_whole);
Result<Json> SlotsJson(source::Source& source, const analysis::Scope& scope);

}  // namespace cgdebug::cli
