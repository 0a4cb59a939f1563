// probe.h: one call of a probe in a live job, as the daemon lists it.
//
// No protobuf behind this header: views that show probes include it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/base/result.h"
#include "daemon/core/numerics/stats.h"
#include "proto/layout/counters.h"
#include "proto/layout/ring_layout.h"
#include "proto/layout/slot_control.h"
#include "proto/layout/verdict.h"

namespace cgdebug::client {
class Client;
}

namespace cgdebug::live {

// The first snapshot with NaN, or with Inf, of a slot or of a session.
struct FirstNonfinite {
  std::string probe;
  std::uint32_t invocation = 0;
  std::string graph;
  std::uint64_t graph_id = 0;
  std::vector<std::uint64_t> shape;
  std::uint32_t slot = 0;
  std::string qualifier;     // as source::Slot
  std::uint64_t replay = 0;  // 0: there is none
  std::uint64_t serial = 0;
  std::int64_t step = -1;
  std::uint64_t count = 0;  // elements
};

struct Probe {
  std::string session;  // its key
  source::Slot slot;    // whose `order` is its number in the session
  std::uint64_t probe_id = 0;
  layout::Lane lane = layout::Lane::kHost;
  std::string
      lane_reason;  // why it is not the direct lane; empty if it is, or if no reason is known
  layout::Policy policy = layout::Policy::kOverwrite;
  std::vector<std::string_view> actions;  // "print", "record", ...
  std::uint32_t capacity = 0;             // entries of the ring
  std::uint64_t replay = 0;               // of the newest snapshot; 0: none came yet
  std::int64_t last_timestamp_ns = 0;
  bool retired = false;  // its graph is gone
  layout::Counters counters;
  FirstNonfinite first_nan;
  FirstNonfinite first_inf;
  std::optional<layout::Verdict> verdict;      // absent: it does not compare
  std::optional<layout::SlotControl> control;  // absent: as registered
  std::optional<numerics::Stats> last_stats;   // absent: no snapshot yet
};

// The probes that `globs` name (none: all) of the sessions that `session` names (empty: all).
// Requires: a connected client.
Result<std::vector<Probe>> ListProbes(client::Client& client, const std::string& session = "",
                                      const std::vector<std::string>& globs = {});

}  // namespace cgdebug::live
