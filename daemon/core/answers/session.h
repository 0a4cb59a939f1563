// session.h: one traced process, as the daemon knows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/answers/probe.h"
#include "daemon/core/recording/types.h"
#include "proto/layout/graph_facts.h"
#include "proto/layout/not_seen.h"

namespace cgdebug::answers {

enum class SessionState : std::uint8_t {
  kAlive,
  kExited,  // said goodbye
  kDied,    // did not
};
constexpr std::string_view NameOf(SessionState state) {
  constexpr std::string_view kNames[] = {"alive", "exited", "died"};
  return layout::NameAt(kNames, static_cast<std::size_t>(state));
}

// How many of a session's captured calls use one lane, for one reason.
struct LaneUse {
  layout::Lane lane = layout::Lane::kHost;
  std::string reason;  // as Probe::lane_reason
  std::uint64_t slots = 0;

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, "lane"}, self.lane);
    visit(layout::Field{2, "reason"}, self.reason);
    visit(layout::Field{3, "slots"}, self.slots);
  }
};

// Counts how the daemon has compared tensors that must be equal over the ranks of its machine.
struct ReplicaCounts {
  std::uint64_t compared = 0;   // snapshots that were compared with those of one other rank or more
  std::uint64_t different = 0;  // of these, not what most ranks have, or no two ranks agree
  std::uint64_t close = 0;      // likewise, but within the tolerance of an all-reduce
  std::uint64_t unknown = 0;    // likewise, and by how much is not known
  // A rank of this machine lacked the snapshot or came too late, or which ranks have it is not
  // known.
  std::uint64_t incomplete = 0;
  std::uint64_t waiting = 0;  // snapshots that still wait for those of other ranks

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, "compared"}, self.compared);
    visit(layout::Field{2, "different"}, self.different);
    visit(layout::Field{3, "close"}, self.close);
    visit(layout::Field{4, "incomplete"}, self.incomplete);
    visit(layout::Field{5, ""}, self.waiting);
    visit(layout::Field{6, "unknown"}, self.unknown);
  }
};

// What the daemon knows of one process. Fields as in probe.h, without recording::Session::id.
struct Session : recording::Session {
  std::string key;               // 8 hex digits of the uuid, unique among the daemon's sessions
  std::int32_t local_rank = -1;  // -1: unknown
  std::int32_t local_world_size = 0;  // ranks on this machine; 0: unknown
  std::int64_t ended_ns = 0;          // when the daemon saw it end, 0 while alive
  SessionState state = SessionState::kAlive;
  std::uint32_t probes = 0;
  std::uint32_t slots = 0;
  std::vector<LaneUse> lanes;
  std::uint64_t replay = 0;        // the highest of any slot
  std::uint64_t calls = 0;         // the newest eager call that any slot has; 0: none
  std::int64_t step = -1;          // -1: the job sets none
  std::uint64_t shm_bytes = 0;     // control file and extents
  std::uint64_t device_bytes = 0;  // of device memory, that its probes take
  layout::Counters counters;
  std::uint64_t nonfinite_probes = 0;  // that have shown NaN or Inf, masks aside
  std::uint64_t mask_probes = 0;       // rows of op logs with -Inf that may be on purpose
  std::string first_mask;              // the first of these
  std::uint64_t failed_probes = 0;     // whose comparison failed
  std::optional<FirstNonfinite> first_nan;
  std::optional<FirstNonfinite> first_inf;
  ReplicaCounts replicas;
  // The same, the first failed comparison and the first replica that differs in words, as the job
  // is told; empty: none.
  std::string found_nan, found_inf, found_mismatch, found_replica;
  // Probes whose values stayed in device memory without statistics, so that nobody has looked at
  // them, and the names of the first of these.
  std::uint64_t unseen_probes = 0;
  std::vector<std::string> unseen;
  std::vector<layout::NotSeen> not_seen;  // one of each kind
  // How often a row of an op log held NaN or Inf in a replay or call that the daemon let go: what
  // excuses it is not known.
  std::uint64_t nonfinite_let_go = 0;
  std::int64_t moved_ns = 0;  // CLOCK_REALTIME of its newest snapshot; 0: none came

  // What `replay` counts: "replay", or "call" if that is the number of an eager call.
  const char* replay_word() const { return calls > 0 && calls >= replay ? "call" : "replay"; }

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "key"}, self.key);
    recording::Session::ForEachField(self, [&](const Field& field, auto& value) {
      if (std::string_view(field.name) != "id") visit(field, value);
    });
    visit(Field{21, "ended_ns"}, self.ended_ns);
    visit(Field{16, "state"}, self.state);
    visit(Field{17, "probes"}, self.probes);
    visit(Field{18, "slots"}, self.slots);
    visit(Field{28, "lanes"}, self.lanes);
    visit(Field{19, "replay"}, self.replay);
    visit(Field{39, "calls"}, self.calls);
    visit(Field{23, "step"}, self.step);
    visit(Field{22, "shm_bytes"}, self.shm_bytes);
    visit(Field{29, "device_bytes"}, self.device_bytes);
    visit(Field{20, "counters"}, self.counters);
    visit(Field{24, "nonfinite_probes"}, self.nonfinite_probes);
    visit(Field{40, "mask_probes"}, self.mask_probes);
    visit(Field{41, "first_mask"}, self.first_mask);
    visit(Field{25, "failed_probes"}, self.failed_probes);
    visit(Field{26, "first_nan"}, self.first_nan);
    visit(Field{27, "first_inf"}, self.first_inf);
    visit(Field{30, "found_nan"}, self.found_nan);
    visit(Field{31, "found_inf"}, self.found_inf);
    visit(Field{32, "found_mismatch"}, self.found_mismatch);
    visit(Field{33, "replicas"}, self.replicas);
    visit(Field{34, "found_replica"}, self.found_replica);
    visit(Field{35, "unseen_probes"}, self.unseen_probes);
    visit(Field{36, ""}, self.unseen);
    visit(Field{37, "not_seen"}, self.not_seen);
    visit(Field{42, "nonfinite_let_go"}, self.nonfinite_let_go);
    visit(Field{38, "moved_ns"}, self.moved_ns);
    visit(Field{13, ""}, self.local_rank);
    visit(Field{14, ""}, self.local_world_size);
  }
};

// The CUDA graphs of one session, as they are now.
struct SessionGraphs : layout::GraphCensus {
  std::string session;  // its key
  std::string session_label;
  std::int32_t rank = -1;

  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(layout::Field{1, "session"}, self.session);
    visit(layout::Field{2, "session_label"}, self.session_label);
    visit(layout::Field{3, "rank"}, self.rank);
    layout::GraphCensus::ForEachField(self, visit);
  }
};

}  // namespace cgdebug::answers
