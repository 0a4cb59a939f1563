// identity.h: which process and probe a tensor belongs to. Made once from validated registrations,
// then shared and never changed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/core/recording/types.h"
#include "libprobe/ring/op_log_table.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::pipeline {

// One traced process. Texts are clean (text.h). `run_id` comes from the launcher, or is made up for
// the ranks of one launch; `pid` is what the process says, in its own PID namespace; `id` is not
// used.
struct SessionIdentity : recording::Session {
  std::string segment;  // name of the control file in /dev/shm
  std::string key;      // the first 8 digits of the uuid; more when another session has the same 8
  // The kernel confirms `pid`: the process that held the producer's lock when the daemon found the
  // segment has this pid here. The daemon touches nothing outside the segment on the segment's word
  // alone.
  bool is_pid_true = false;
  std::int32_t local_rank = -1;       // -1: unknown
  std::int32_t local_world_size = 0;  // ranks on this machine; 0: unknown
  std::uint64_t pid_namespace = 0;
  std::uint64_t pid_start_ticks = 0;
  std::string recordings;  // directory for those that it asks for, in its namespace; may be empty
};
using SessionPtr = std::shared_ptr<const SessionIdentity>;

// One slot of a process: one call of a probe in one captured graph, or its eager calls with one
// shape.
struct SlotIdentity {
  SessionPtr session;
  std::uint32_t index = 0;              // in the segment's directory
  std::uint64_t generation = 0;         // of that directory entry
  layout::SlotFacts registration = {};  // its texts are below
  layout::Dtype dtype = layout::Dtype::kInvalid;
  std::vector<std::uint64_t> shape;
  std::string probe;
  std::string site;
  std::string device;        // "cuda:0", "cpu"
  std::string shard;         // which part of a distributed tensor it is, else empty
  std::string part;          // as layout::SlotRegistration::part
  std::string op;            // of a row of an op log, as layout::SlotRegistration::op; else empty
  std::string details;       // of a row of an op log: a JSON object, or empty
  std::uint32_t launch = 0;  // of a row of an op log, as layout::OpLogRow::launch; else 0
  std::string graph_label;   // the user's name for the graph; empty: none

  bool Has(std::uint32_t action) const { return (registration.actions & action) != 0; }
  // Whether it lies in the body of a conditional node, and runs any number of times in a replay.
  bool IsInBody() const { return (registration.flags & layout::kSlotInBody) != 0; }
  bool CountsCalls() const { return IsInBody() && registration.graph_id == 0; }
  // Whether its values stay in device memory until somebody asks for them.
  bool IsOnDevice() const { return (registration.flags & layout::kSlotOnDevice) != 0; }
};
using SlotPtr = std::shared_ptr<const SlotIdentity>;

// `key` is left for the registry, which knows the other sessions. `lock_holder` is the pid that
// holds the producer's lock (ring::SegmentView::ProducerPid()).
SessionIdentity MakeSessionIdentity(const std::string& segment, const std::string& uuid,
                                    const layout::SegmentHeader& header,
                                    std::int32_t lock_holder = 0);

// Requires: `registration` is validated (ring::SlotRingReader::registration()).
SlotIdentity MakeSlotIdentity(SessionPtr session, std::uint32_t index, std::uint64_t generation,
                              const layout::SlotRegistration& registration);

// Row `number` of `page`, a slot that holds an op log, as the slot of a probe that wants
// statistics. Its index is one that no entry of the directory has.
SlotIdentity MakeRowIdentity(const SlotIdentity& page, std::size_t number,
                             const ring::OpLogRow& row);
inline bool IsOpLogRow(const SlotIdentity& slot) { return slot.index >= layout::kMaxSlots; }
// Whether it is a row of an op log at all: in an eager log of a job that uses a GPU, rows are
// probes.
inline bool IsOfOpLog(const SlotIdentity& slot) { return IsOpLogRow(slot) || !slot.op.empty(); }
// The slot's index in the directory; for a row, its page's.
inline std::uint32_t DirectoryIndexOf(const SlotIdentity& slot) {
  return IsOpLogRow(slot) ? (slot.index - layout::kMaxSlots) / layout::kMaxOpLogRows : slot.index;
}
// Whether two rows are of one page.
inline bool AreOfOnePage(const SlotIdentity& a, const SlotIdentity& b) {
  return a.session == b.session && a.generation == b.generation &&
         DirectoryIndexOf(a) == DirectoryIndexOf(b);
}

}  // namespace cgdebug::pipeline
