// probe.h: asks the daemon for the probes of live jobs, and changes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cgdebug/client.h"
#include "client/source/source.h"
#include "daemon/core/answers/probe.h"
#include "daemon/core/base/result.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::live {

using answers::Action;
using answers::FirstNonfinite;
using answers::OpLog;
using answers::Probe;

// The op logs of the sessions that `session` names, as below: oldest session first, then in the
// order of registration.
Result<std::vector<OpLog>> ListOpLogs(client::Client& client, const std::string& session = "");
// The rows of that log, without `last_stats`.
Result<std::vector<Probe>> ListRows(client::Client& client, const OpLog& log);

enum class LastStats : bool { kNone, kWanted };
// The probes that `globs` name (none: all) of the sessions that `session` names (empty: all).
// Requires: a connected client, as every function of client/live.
Result<std::vector<Probe>> ListProbes(client::Client& client, const std::string& session = "",
                                      const std::vector<std::string>& globs = {},
                                      LastStats stats = LastStats::kWanted);
// All of them, without `last_stats`, and the rows that say what op logs do not show
// (layout::IsNoRow), which are no probes.
Result<std::vector<Probe>> ListProbesAndGaps(client::Client& client, const std::string& session);

// What probes are to do while they replay.
struct ControlRequest {
  std::string session;
  std::vector<std::string> probes;
  layout::SlotControl control;  // from 0 with `until` set: `until` replays from the next one on
  std::uint64_t ttl_ms = 0;     // after which it is as registered again; 0: never by itself
  WhichSlots which;
};
using answers::Controlled;
Result<Controlled> SetControl(client::Client& client, const ControlRequest& request);

}  // namespace cgdebug::live
