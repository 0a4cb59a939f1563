// live_table.h: the probes of live jobs, as the daemon lists them, as a table.
#pragma once

#include <vector>

#include "client/cli/views/terminal.h"
#include "client/live/probe.h"

namespace cgdebug::cli {

// One line per slot: type, device, lane, policy, actions, ring, losses, the last snapshot in one
// line. The probes are in the order of the lines.
TextTable LiveTable(const std::vector<live::Probe>& probes, const Style& style, bool with_session,
                    bool is_whole);

}  // namespace cgdebug::cli
