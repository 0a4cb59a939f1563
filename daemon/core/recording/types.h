// types.h: what a recording holds, as the writer takes it and the reader gives it, and which fields
// of proto/recording.proto hold it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/numerics/stats.h"
#include "proto/layout/dtype.h"
#include "proto/layout/field.h"
#include "proto/layout/loss_cause.h"
#include "proto/layout/not_seen.h"

namespace cgdebug::recording {

// A traced process.
struct Session {
  std::uint32_t id = 0;  // place in RecordingReader::sessions()
  std::string uuid;      // 32 hex digits
  std::string label;     // run id, else "<script>-<pid>"; "/r<rank>" in a distributed job
  std::string run_id;
  std::string command;
  std::string hostname;
  std::string version;  // of the probe library
  std::int32_t pid = 0;
  std::int32_t rank = -1;  // -1: not distributed
  std::int32_t world_size = 1;
  std::int32_t restart_count = 0;
  std::int64_t created_ns = 0;

  // Numbers and names are those of `Session` in proto/recording.proto and, except for `id`, in
  // proto/control.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Encoding, layout::Field;
    visit(Field{2, "label"}, self.label);
    visit(Field{3, "uuid"}, self.uuid);
    visit(Field{4, "pid"}, self.pid);
    visit(Field{5, "rank", Encoding::kSigned}, self.rank);
    visit(Field{6, "world_size"}, self.world_size);
    visit(Field{7, "run_id"}, self.run_id);
    visit(Field{8, "restart_count"}, self.restart_count);
    visit(Field{9, "command"}, self.command);
    visit(Field{10, "hostname"}, self.hostname);
    visit(Field{11, "version"}, self.version);
    visit(Field{12, "created_ns"}, self.created_ns);
    visit(Field{15, "id"}, self.id);
  }
};

// One call of a probe in one captured graph, or its eager calls with one shape.
struct Slot {
  std::uint32_t id = 0;  // place in RecordingReader::slots()
  std::uint32_t session = 0;
  std::string probe;
  std::string site;    // "file.py:12", empty when unknown
  std::string device;  // "cuda:0", "cpu"
  std::string shard;   // which part of a distributed tensor it is, else empty
  layout::Dtype dtype = layout::Dtype::kInvalid;
  std::vector<std::uint64_t> shape;
  std::uint64_t payload_bytes = 0;  // of one snapshot
  std::uint64_t graph_id = 0;       // 0: eager
  std::uint32_t invocation = 0;     // which call of the probe in the capture, from 0
  std::uint64_t order = 0;          // of registration in the process, from 1: graph order
  std::uint32_t every = 1;          // replays 1, 1 + every, ... are recorded
  std::uint32_t index = 0;          // place in the segment's directory
  std::uint64_t generation = 0;     // of that directory entry
  std::uint64_t from_ordinal = 0;   // snapshots up to this one came before the recording
  std::uint64_t from_replay = 0;    // replays up to this one came before the recording
  std::string graph_label = {};     // the user's name for the graph; empty: none
  std::string op = {};  // of a row of an op log, as layout::SlotRegistration::op; else empty

  // Any number of snapshots have the same replay: it is in the body of a conditional node or, if
  // graph_id is 0, its replays are eager calls.
  bool in_body = false;
  std::string part = {};  // "rows:0:8 of [8192,4096]": the elements that it has; empty: all of them
  std::string details = {};  // of a row of an op log: a JSON object, or empty
  std::uint32_t thread = 0;  // as layout::SlotFacts

  // Numbers and names are those of `Slot` in proto/recording.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "session"}, self.session);
    visit(Field{2, "probe"}, self.probe);
    visit(Field{3, "site"}, self.site);
    visit(Field{4, "device"}, self.device);
    visit(Field{5, "dtype"}, self.dtype);
    visit(Field{6, "shape"}, self.shape);
    visit(Field{7, "payload_bytes"}, self.payload_bytes);
    visit(Field{8, "graph_id"}, self.graph_id);
    visit(Field{9, "invocation"}, self.invocation);
    visit(Field{10, "order"}, self.order);
    visit(Field{11, "every"}, self.every);
    visit(Field{12, "index"}, self.index);
    visit(Field{13, "generation"}, self.generation);
    visit(Field{14, "id"}, self.id);
    visit(Field{15, "from_ordinal"}, self.from_ordinal);
    visit(Field{16, "shard"}, self.shard);
    visit(Field{17, "graph_label"}, self.graph_label);
    visit(Field{18, "from_replay"}, self.from_replay);
    visit(Field{19, "op"}, self.op);
    visit(Field{20, "in_body"}, self.in_body);
    visit(Field{21, "part"}, self.part);
    visit(Field{22, "details"}, self.details);
    visit(Field{23, "thread"}, self.thread);
  }
};

// The comparison of a snapshot with the expected tensor of its probe (TensorCompare).
struct Comparison {
  std::uint64_t mismatched = 0;  // elements
  double max_abs = 0;            // greatest absolute difference of those
  double max_rel = 0;            // greatest difference relative to |expected|
};

// Everything about a snapshot except the values.
struct Snapshot {
  std::uint32_t slot = 0;
  std::uint64_t ordinal = 0;  // of the slot's accepted snapshots, from 1; ascends within a slot
  std::uint64_t replay = 0;   // from 1; ascends within a slot, with `iteration`
  std::uint64_t serial = 0;   // of the replay (ring_layout.h); 0: unknown
  std::int64_t step = -1;     // the user's own step marker
  std::int64_t timestamp_ns = 0;
  std::uint64_t skipped = 0;  // ordinals just before this one that the recording did not want
  bool unchanged = false;     // the same bytes as the slot's snapshot before it
  bool stats_only = false;    // no payload was recorded
  numerics::Stats stats;
  std::uint64_t payload_bytes = 0;  // 0 with stats_only
  std::uint64_t payload_hash = 0;   // XXH3-64 of the tensor's bytes
  std::uint32_t iteration = 0;      // of a conditional body in that replay, from 0
  bool compared = false;            // whether `comparison` is valid
  Comparison comparison;

  // Numbers and names are those of `Snapshot` in proto/recording.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Encoding, layout::Field;
    visit(Field{1, "slot"}, self.slot);
    visit(Field{2, "ordinal"}, self.ordinal);
    visit(Field{3, "replay"}, self.replay);
    visit(Field{4, "step", Encoding::kSigned}, self.step);
    visit(Field{5, "timestamp_ns"}, self.timestamp_ns);
    visit(Field{6, "skipped"}, self.skipped);
    visit(Field{7, "unchanged"}, self.unchanged);
    visit(Field{8, "stats_only"}, self.stats_only);
    visit(Field{9, "stats"}, self.stats);
    // A record with a payload has it in the header.
    visit(Field{10, "payload_hash", Encoding::kFixed}, self.payload_hash);
    visit(Field{11, "mismatched"}, self.compared, self.comparison.mismatched);
    visit(Field{12, "max_abs"}, self.comparison.max_abs);
    visit(Field{13, "max_rel"}, self.comparison.max_rel);
    visit(Field{14, "serial", Encoding::kFixed}, self.serial);
    visit(Field{15, "iteration"}, self.iteration);
  }
};

using layout::LossCause;

// Missing snapshots of one slot. `count` of them were wanted; with every > 1, the span may contain
// ordinals that were not.
struct Loss {
  std::uint32_t slot = 0;
  LossCause cause = LossCause::kOverwritten;
  std::uint64_t count = 0;
  std::uint64_t first_ordinal = 0;  // 0: they never had one
  std::uint64_t last_ordinal = 0;
  // They lie between these replays; 0: no limit. Usually the last one seen before and the first one
  // seen after. In a conditional body, where iterations of those may be lost too, one further out.
  std::uint64_t after_replay = 0;
  std::uint64_t before_replay = 0;
  std::int64_t timestamp_ns = 0;

  // Numbers and names are those of `Loss` in proto/recording.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "slot"}, self.slot);
    visit(Field{2, "cause"}, self.cause);
    visit(Field{3, "count"}, self.count);
    visit(Field{4, "first_ordinal"}, self.first_ordinal);
    visit(Field{5, "last_ordinal"}, self.last_ordinal);
    visit(Field{6, "after_replay"}, self.after_replay);
    visit(Field{7, "before_replay"}, self.before_replay);
    visit(Field{8, "timestamp_ns"}, self.timestamp_ns);
  }
};

enum class MarkKind : std::uint32_t {
  kStarted = 1,       // a writer began, or went on
  kStopped = 2,       // a writer ended; the text says why
  kSessionEnded = 3,  // the job exited
  kSessionDied = 4,
  kSlotClosed = 5,  // nothing more comes from the slot; `replay` is its last replay
  kNote = 6,
  // The first of each slot that the daemon found, whether the recording has that snapshot or not.
  kFirstNan = 7,
  kFirstInf = 8,
  kFirstMismatch = 9,  // a comparison that failed; the text says how
  kFirstUnequal = 10,  // not the same as on the other ranks of its node; likewise
  // What the session's process wanted to be seen and nobody saw; the last one of each of its kinds
  // counts. Not about a slot.
  kNotSeen = 11,
};

struct Mark {
  static constexpr std::int64_t kNoSlot = -1;
  MarkKind kind = MarkKind::kNote;
  std::uint32_t session = 0;
  std::int64_t slot = kNoSlot;
  std::uint64_t replay = 0;
  std::int64_t step = -1;
  std::int64_t timestamp_ns = 0;
  std::string text;
  std::uint64_t ordinal = 0;  // kSlotClosed: the recording covers snapshots up to this one
  std::uint64_t skipped = 0;  // likewise: how many it did not want after the last snapshot
  std::uint64_t count = 0;    // of a finding: elements
  std::uint64_t serial = 0;   // likewise: of its replay, as Snapshot::serial
  std::optional<layout::NotSeen> not_seen = {};  // of kNotSeen

  // Numbers and names are those of `Mark` in proto/recording.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Encoding, layout::Field;
    visit(Field{1, "kind"}, self.kind);
    visit(Field{2, "session"}, self.session);
    visit(Field{3, "slot", Encoding::kSigned}, self.slot);
    visit(Field{4, "replay"}, self.replay);
    visit(Field{5, "step", Encoding::kSigned}, self.step);
    visit(Field{6, "timestamp_ns"}, self.timestamp_ns);
    visit(Field{7, "text"}, self.text);
    visit(Field{8, "ordinal"}, self.ordinal);
    visit(Field{9, "skipped"}, self.skipped);
    visit(Field{10, "count"}, self.count);
    visit(Field{11, "serial", Encoding::kFixed}, self.serial);
    visit(Field{12, "not_seen"}, self.not_seen);
  }
};

// Whether a mark reports the first snapshot of its slot with something wrong.
constexpr bool IsFinding(MarkKind kind) {
  return kind == MarkKind::kFirstNan || kind == MarkKind::kFirstInf ||
         kind == MarkKind::kFirstMismatch || kind == MarkKind::kFirstUnequal;
}

enum class StopReason : std::uint32_t {
  kNone = 0,       // still recording
  kRequested = 1,  // record stop, or the client went
  kReached = 2,    // --replays or --duration
  kJobEnded = 3,
  kDaemonStopped = 4,
  kMaxSize = 5,
  kDiskFull = 6,    // or the space that is kept free
  kWriteError = 7,  // anything else the system said
  kCutOff = 8,      // a copy of a recording whose end was missing
};
constexpr std::string_view ToText(StopReason reason) {
  constexpr std::string_view kTexts[] = {
      "recording", "stopped",        "complete",
      "job ended", "daemon stopped", "size limit reached",
      "disk full", "write failed",   "copied from a recording without its end"};
  const auto place = static_cast<std::size_t>(reason);
  return place < std::size(kTexts) ? kTexts[place] : "unknown reason";
}

// Whether a recording that ended for this reason got everything it was to record.
constexpr bool HadAll(StopReason reason) {
  return reason == StopReason::kRequested || reason == StopReason::kReached ||
         reason == StopReason::kJobEnded;
}

}  // namespace cgdebug::recording
