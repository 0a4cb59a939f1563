// record_selection.h: what a recording was asked for, and what belongs in it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/base/glob.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/base/result.h"
#include "daemon/core/recording/recording_writer.h"
#include "daemon/pipeline/sink.h"
#include "proto/layout/not_seen.h"

namespace cgdebug::pipeline {

// Which jobs wait for room and write every replay, whatever `every` of an action is.
enum class LosslessJobs {
  kNew,  // those that start after the recording
  kNone,
  kEvery,  // also those that run already
};

struct RecordRequest {
  std::string directory;
  std::vector<std::string> probes;  // globs; none = all
  WhichSlots which;  // among these probes; a graph by the label that the user gave it
  // Uuid and number of the graphs that had the name `which.graph` at the start.
  std::set<std::pair<std::string, std::uint64_t>> graphs;
  std::set<std::string> sessions;  // uuids; none = every session, now and later
  std::string run_id;              // not empty: the sessions of this run instead
  std::optional<std::int32_t> rank;
  std::uint64_t replays = 0;                        // of each probe; 0 = until it is stopped
  std::chrono::nanoseconds duration{0};             // 0 = until it is stopped
  std::uint64_t align = 0;                          // starts at a replay that is a multiple of it
  std::uint64_t max_bytes = 0;                      // 0 = as much as the daemon allows
  std::uint64_t roll_bytes = 0;                     // 0 = the daemon's setting
  std::optional<std::uint64_t> min_free_bytes;      // of the disk; likewise
  std::optional<recording::Durability> durability;  // likewise
  bool to_disk_only = false;                        // only slots registered with to="disk"
  LosslessJobs lossless = LosslessJobs::kNew;
  pid_t owner = 0;  // while it lives, the recording does not end with its jobs; 0 = none
};

// Thread: any; it never changes.
class RecordSelection {
 public:
  // `started_ns`: when the recording began. Fails: a bad glob.
  static Result<RecordSelection> Parse(RecordRequest request, std::int64_t started_ns);

  const RecordRequest& request() const { return request_; }

  bool Wants(const SlotIdentity& slot) const;
  bool Wants(const SessionIdentity& session) const;
  // Whether what a job says of places that nobody saw is about these probes. It names one of them:
  // of a part of the probes, the others are not asked for.
  bool Wants(const layout::NotSeen& not_seen) const {
    return probes_.selects_everything() || probes_.Matches(not_seen.name);
  }
  // Whether the recording needs every snapshot of the slot.
  bool NeedsAll(const SlotIdentity& slot) const;
  // Whether it takes any future job, and needs all of its snapshots.
  bool AwaitsJobs() const;
  // Replays 1, 1 + this, ... are all that the slot's actions write.
  std::uint32_t EveryOf(const SlotIdentity& slot) const;

 private:
  RecordSelection(RecordRequest request, Selector probes, std::int64_t started_ns)
      : request_(std::move(request)), probes_(std::move(probes)), started_ns_(started_ns) {}

  RecordRequest request_;
  Selector probes_;
  std::int64_t started_ns_;
};

// The period of the replays that `slot` writes by itself, 0 if it cannot be told from the replays
// of its snapshots: actions with several periods, bodies, comparisons that send nothing if they
// pass.
std::uint32_t PeriodOf(const SlotIdentity& slot);

}  // namespace cgdebug::pipeline
