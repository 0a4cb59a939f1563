// probe.h: one call of a probe in a live job.
//
// The structs of this folder list their fields as the messages of proto/control.proto number them,
// and under their names in JSON; a field without a name is not in JSON. The daemon fills them in,
// clients read them: reply.h turns them into bytes and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/answers/slot.h"
#include "daemon/core/numerics/stats.h"
#include "proto/layout/counters.h"
#include "proto/layout/ring_layout.h"
#include "proto/layout/slot_control.h"
#include "proto/layout/verdict.h"

namespace cgdebug::answers {

enum class Action : std::uint8_t { kPrint, kRecord, kCompare, kStats };
constexpr std::string_view NameOf(Action action) {
  return layout::NameAt(layout::kActionNames, static_cast<std::size_t>(action));
}

// The first snapshot with NaN, or with Inf, of a slot or of a session.
struct FirstNonfinite {
  enum class Kept : std::uint8_t { kValues, kStatistics, kNothing };

  Slot slot;  // what names it
  std::uint64_t replay = 0;
  std::uint64_t serial = 0;
  std::int64_t step = -1;
  std::uint64_t count = 0;    // elements
  Kept kept = Kept::kValues;  // what the daemon has of that snapshot

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "probe"}, self.slot.probe);
    visit(Field{8, "invocation"}, self.slot.invocation);
    visit(Field{6, "graph"}, self.slot.graph);
    visit(Field{7, "graph_id"}, self.slot.graph_id);
    visit(Field{9, "shape"}, self.slot.shape);
    visit(Field{10, "slot"}, self.slot.order);
    visit(Field{2, "replay"}, self.replay);
    visit(Field{5, "serial", layout::Encoding::kFixed}, self.serial);
    visit(Field{3, "step"}, self.step);
    visit(Field{4, "count"}, self.count);
    visit(Field{11, ""}, self.slot.qualifier);
    visit(Field{12, ""}, self.kept);
    visit(Field{13, ""}, self.slot.in_body);
    visit(Field{14, ""}, self.slot.thread);
  }
};

struct Probe {
  std::string session;  // its key
  Slot slot;            // whose `order` is its number in the session
  std::uint64_t probe_id = 0;
  layout::Lane lane = layout::Lane::kHost;
  // Why it is not the direct lane; empty if it is, or if no reason is known.
  std::string lane_reason;
  layout::Policy policy = layout::Policy::kOverwrite;
  std::vector<Action> actions;
  std::uint32_t capacity = 0;      // entries of the ring
  std::uint64_t device_bytes = 0;  // of the ring, if it is in device memory; else 0
  std::uint64_t replay = 0;        // of the newest snapshot; 0: none came yet
  std::uint32_t iteration = 0;     // likewise, of a conditional body
  std::int64_t last_timestamp_ns = 0;
  // Set in rows of an op log, as in ProbeInfo of proto/control.proto.
  std::uint64_t reached = 0;
  std::int64_t reached_ns = 0;
  std::uint32_t launch = 0;
  bool retired = false;      // its graph is gone
  bool is_compiled = false;  // code that torch.compile made hands its tensors over
  layout::Counters counters;
  std::optional<FirstNonfinite> first_nan;     // absent: it has shown none
  std::optional<FirstNonfinite> first_inf;     // likewise
  std::optional<layout::Verdict> verdict;      // absent: it does not compare
  std::optional<layout::SlotControl> control;  // absent: as registered
  std::optional<numerics::Stats> last_stats;   // absent: no snapshot yet

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "session"}, self.session);
    visit(Field{24, "session_label"}, self.slot.session);
    visit(Field{23, "rank"}, self.slot.rank);
    visit(Field{2, "name"}, self.slot.probe);
    visit(Field{21, "slot"}, self.slot.order);
    visit(Field{3, "probe_id"}, self.probe_id);
    visit(Field{27, "graph"}, self.slot.graph);
    visit(Field{4, "graph_id"}, self.slot.graph_id);
    visit(Field{5, "invocation"}, self.slot.invocation);
    visit(Field{6, "dtype"}, self.slot.dtype_name);
    visit(Field{7, "shape"}, self.slot.shape);
    visit(Field{8, "device"}, self.slot.device);
    visit(Field{9, "lane"}, self.lane);
    visit(Field{22, "lane_reason"}, self.lane_reason);
    visit(Field{10, "policy"}, self.policy);
    visit(Field{11, "actions"}, self.actions);
    visit(Field{12, "capacity"}, self.capacity);
    visit(Field{13, "payload_bytes"}, self.slot.payload_bytes);
    visit(Field{37, "device_bytes"}, self.device_bytes);
    visit(Field{14, "replay"}, self.replay);
    visit(Field{33, "iteration"}, self.iteration);
    visit(Field{32, "in_body"}, self.slot.in_body);
    visit(Field{41, "thread"}, self.slot.thread);
    visit(Field{16, "last_timestamp_ns"}, self.last_timestamp_ns);
    visit(Field{17, "site"}, self.slot.site);
    visit(Field{26, "shard"}, self.slot.shard);
    visit(Field{38, "part"}, self.slot.part);
    visit(Field{31, "op"}, self.slot.op);
    visit(Field{39, "details"}, self.slot.details);
    visit(Field{18, "retired"}, self.retired);
    visit(Field{40, "compiled"}, self.is_compiled);
    visit(Field{15, "counters"}, self.counters);
    visit(Field{28, "first_nan"}, self.first_nan);
    visit(Field{29, "first_inf"}, self.first_inf);
    visit(Field{19, "verdict"}, self.verdict);
    visit(Field{25, "control"}, self.control);
    visit(Field{20, "last_stats"}, self.last_stats);
    visit(Field{30, ""}, self.slot.qualifier);
    visit(Field{34, ""}, self.reached);
    visit(Field{35, ""}, self.reached_ns);
    visit(Field{36, ""}, self.launch);
  }
};

// One op log of a live job: the rows of one capture, or of one eager run.
struct OpLog {
  std::string session;  // its key
  std::string label;    // of the session
  int rank = -1;
  std::uint64_t graph_id = 0;  // 0: eager
  std::string graph;           // as source::Slot
  // Orders of its rows in the session; others may lie between them.
  std::uint32_t first_slot = 0;
  std::uint32_t last_slot = 0;
  std::uint32_t rows = 0;
  std::int64_t last_timestamp_ns = 0;  // of the newest replay; 0: none came

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "session"}, self.session);
    visit(Field{2, "session_label"}, self.label);
    visit(Field{3, "rank"}, self.rank);
    visit(Field{4, "graph_id"}, self.graph_id);
    visit(Field{5, "graph"}, self.graph);
    visit(Field{6, "first_slot"}, self.first_slot);
    visit(Field{7, "last_slot"}, self.last_slot);
    visit(Field{8, "rows"}, self.rows);
    visit(Field{9, "last_timestamp_ns"}, self.last_timestamp_ns);
  }
};
// What the daemon changed.
struct Controlled {
  static constexpr std::uint32_t kNumber = 9;  // as in reply.h
  std::uint32_t slots = 0;
  std::uint32_t probes = 0;
  std::int64_t expires_ns = 0;  // wall clock; 0: never

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, "slots"}, self.slots);
    visit(layout::Field{2, "probes"}, self.probes);
    visit(layout::Field{3, "expires_ns"}, self.expires_ns);
  }
};

// One snapshot that the daemon keeps, without its values.
struct Kept {
  std::uint32_t slot = 0;  // its order in the session
  std::uint64_t replay = 0;
  std::uint32_t iteration = 0;
  std::uint64_t ordinal = 0;
  std::uint64_t serial = 0;
  std::int64_t step = -1;
  std::int64_t timestamp_ns = 0;
  bool has_values = false;
  bool unchanged = false;  // the same bytes as the snapshot with the ordinal before
  numerics::Stats stats;

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "replay"}, self.replay);
    visit(Field{2, "ordinal"}, self.ordinal);
    visit(Field{3, "serial", layout::Encoding::kFixed}, self.serial);
    visit(Field{4, "step"}, self.step);
    visit(Field{5, "timestamp_ns"}, self.timestamp_ns);
    visit(Field{6, "has_values"}, self.has_values);
    visit(Field{7, "unchanged"}, self.unchanged);
    visit(Field{8, "stats"}, self.stats);
    visit(Field{9, "iteration"}, self.iteration);
    visit(Field{10, "slot"}, self.slot);
  }
};

}  // namespace cgdebug::answers
