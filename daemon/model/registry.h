// registry.h: what the daemon knows about the jobs it reads: written by ingest, read by serve.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/core/answers/session.h"
#include "daemon/core/answers/status.h"
#include "daemon/model/finding.h"
#include "daemon/model/slot_names.h"
#include "daemon/model/snapshot.h"
#include "libprobe/ring/graph_census.h"
#include "libprobe/ring/slot_ring_reader.h"
#include "proto/layout/counters.h"
#include "proto/layout/not_seen.h"

namespace cgdebug::pipeline {

using layout::Counters;

// How far the replays of a graph came: up to this slot, or beyond.
struct Reached {
  std::uint64_t replay = 0;  // the newest in which the op of a row was done; 0: not known
  std::int64_t time_ns = 0;  // CLOCK_REALTIME of that, if its replay has not finished; else 0
};

struct SlotRecord {
  SlotPtr slot;
  Counters counters;
  Reached reached;  // of a row of an op log
  std::int64_t last_timestamp_ns = 0;
  bool retired = false;  // its graph is gone
  layout::Verdict verdict;
  ring::FirstNonfinites firsts;  // in all replays that any daemon saw
  layout::SlotControl control;   // what a client set
  SnapshotPtr last;
};

// What any daemon found in the slot.
std::vector<Finding> FindingsOf(const SlotRecord& record);

using answers::ReplicaCounts;
using answers::SessionState;
using SkippedFile = answers::Skipped;

// The first of all slots of a session, by serial and then in graph order.
struct FirstNonfinite {
  SlotPtr slot;  // null: none
  ring::FirstNonfinite seen;
};

constexpr std::size_t kUnseenNames = 4;

// Probes of a session, by what was seen of them.
struct ProbeCounts {
  std::uint64_t all = 0;
  std::uint64_t nonfinite = 0;
  std::uint64_t masks = 0;      // rows of op logs that hold -Inf on purpose (core/ops/masks.h)
  std::string first_mask = {};  // of these, the one that was seen first
  std::uint64_t failed = 0;     // a comparison
  // With a ring in device memory of whose values some have no statistics, and the names of the
  // first kUnseenNames.
  std::uint64_t unseen = 0;
  std::vector<std::string> unseen_names = {};
};

// What a session says of itself.
struct SessionFacts {
  std::uint64_t shm_bytes = 0;
  std::uint64_t device_bytes = 0;  // of device memory, that its probes take
  std::int64_t step = -1;
  std::uint64_t released_unread = 0;  // snapshots, to make room
};

// A session without its slots.
struct SessionRecord {
  SessionPtr session;
  SessionState state = SessionState::kAlive;
  std::int64_t ended_ns = 0;
  SessionFacts facts;
  std::uint64_t replay = 0;   // highest replay of any slot
  std::int64_t moved_ns = 0;  // of the newest snapshot of any slot; 0: none came
  std::uint64_t calls = 0;    // the newest eager call that any slot has; 0: none
  std::uint64_t slot_count = 0;
  ProbeCounts probes;
  Counters counters;
  FirstNonfinite first_nan;
  FirstNonfinite first_inf;
  ReplicaCounts replicas;
  std::vector<layout::NotSeen> not_seen;                    // one of each kind; texts are clean
  std::array<std::string, layout::kFindingKinds> findings;  // by FindingKind: SentenceOf()
  // Slots by lane and by why it is not the direct one (layout::Lane, layout::LaneReason).
  std::map<std::pair<std::uint8_t, std::uint8_t>, std::uint64_t> lanes;
};

// What a slot is called beside its probe (graph_labels.h).
struct SlotPlace {
  std::string graph;      // empty: eager, or an unknown session
  std::string qualifier;  // distinguishes it from other slots of its probe; may be empty
};

// Which slots of a session are listed.
struct SlotRange {
  std::uint64_t first = 0;  // orders of registration
  std::uint64_t last = UINT64_MAX;
  // Only rows of op logs of this capture, or of eager runs if it is 0.
  std::optional<std::uint64_t> rows_of = std::nullopt;
  std::optional<std::string> probe = std::nullopt;  // only of this name
};

// One op log of a session: the rows of one capture, or of one eager run.
struct OpLogRecord {
  std::uint64_t graph_id = 0;     // 0: eager
  std::string graph;              // as SlotPlace
  std::uint64_t first_order = 0;  // of its rows; other slots may lie between them
  std::uint64_t last_order = 0;
  std::uint64_t rows = 0;
  std::int64_t last_timestamp_ns = 0;  // of the newest replay; 0: none came
};

// A session with its slots. Thread: one at a time.
struct KnownSession {
  using SlotKey = std::pair<std::uint32_t, std::uint64_t>;  // index, generation

  SlotRecord* Find(const SlotIdentity& slot);  // null: it is not shown
  void AddToIndexes(const SlotPtr& slot);
  void RemoveFromIndexes(const SlotPtr& slot);
  // Calls `visit` with the records of the range, in order, until it returns false.
  template <typename Visitor>
  void Visit(const SlotRange& range, const Visitor& visit) const;
  std::vector<OpLogRecord> OpLogs();

  SessionRecord record;  // whose sums every change of a slot keeps up
  std::map<SlotKey, SlotRecord> slots;
  std::set<std::pair<std::uint64_t, SlotKey>> by_order;             // of those slots
  std::unordered_map<std::uint64_t, std::uint64_t> slots_of_probe;  // how many, by probe_id
  ring::GraphCensus census;
  std::set<std::string> nonfinite_probes;
  std::set<std::string> mask_probes;
  std::set<std::string> failed_probes;
  std::set<std::string> unseen_probes;
  SlotNames names;  // of those slots
};

// Thread: any; one mutex, held for as long as it takes to copy records.
class Registry {
 public:
  // For ingest. `identity.key` is chosen here.
  SessionPtr AddSession(SessionIdentity identity);
  void SetSession(const SessionPtr& session, const SessionFacts& facts);
  void EndSession(const SessionPtr& session, SessionState state, std::int64_t ended_ns);
  void ForgetSession(const SessionPtr& session);
  // Creates or replaces the record's counters and flags; `last` and the verdict stay.
  void SetSlot(const SlotPtr& slot, const Counters& counters, std::int64_t last_timestamp_ns,
               bool retired, const Reached& reached = {});
  // A value of the slot stays in device memory, and nobody has made statistics of it.
  void NoteUnseen(const SlotPtr& slot);
  void SetVerdict(const SlotPtr& slot, const layout::Verdict& verdict);
  void SetControl(const SlotPtr& slot, const layout::SlotControl& control);
  void SetLast(const SnapshotPtr& snapshot);
  // The row of an op log holds a mask.
  void SetMask(const SlotPtr& slot);
  // The first NaN and Inf of the slot in all replays that any daemon saw, masks aside.
  void SetFirsts(const SlotPtr& slot, const ring::FirstNonfinites& firsts);
  // The first of its kind in the session, in words.
  void SetFinding(const SessionPtr& session, layout::FindingKind kind, const std::string& text);
  // Replaces what is known of its kind.
  void SetNotSeen(const SessionPtr& session, const layout::NotSeen& not_seen);
  void SetReplicas(const SessionPtr& session, const ReplicaCounts& counts);
  // The slot is no longer shown, but its counters stay in the session's sums.
  void ForgetSlot(const SlotPtr& slot);
  void SetGraphs(const SessionPtr& session, ring::GraphCensus graphs);
  void SetSkipped(std::vector<SkippedFile> skipped);

  // For serve.
  // Oldest first. Takes no longer if sessions have many slots: every request asks for it.
  std::vector<SessionRecord> Sessions() const;
  // In order of registration: the first `count` of the range.
  std::vector<SlotRecord> Slots(const SessionPtr& session, const SlotRange& range = {},
                                std::size_t count = ~std::size_t{0}) const;
  // The same without what changes.
  std::vector<SlotPtr> SlotPtrs(const std::string& session_key, const SlotRange& range = {},
                                std::size_t count = ~std::size_t{0}) const;
  // In order of registration.
  std::vector<OpLogRecord> OpLogs(const SessionPtr& session) const;
  SlotPlace PlaceOf(const SlotIdentity& slot) const;
  // As the ingest thread last saw them, with the names that slots give them; texts are clean.
  ring::GraphCensus Graphs(const SessionPtr& session) const;
  std::vector<SkippedFile> Skipped() const;
  std::size_t AliveCount() const;

 private:
  KnownSession* Find(const SessionPtr& session);
  SlotRecord* FindSlot(const SlotPtr& slot);

  mutable std::mutex mutex_;
  mutable std::map<std::string, KnownSession> sessions_;  // by uuid
  std::vector<SkippedFile> skipped_;
};

}  // namespace cgdebug::pipeline
