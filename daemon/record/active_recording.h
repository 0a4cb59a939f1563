// active_recording.h: one recording while it grows: which snapshots belong in it, and when it has
// all of them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
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
#include "daemon/record/ring_reads.h"

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

using recording::RecordingInfo;

// Thread: one at a time (Recorder's mutex).
class ActiveRecording {
 public:
  // `options` fills in what the request leaves open; its max_bytes always holds.
  // Fails: a bad selection, the directory cannot be written.
  static Result<std::unique_ptr<ActiveRecording>> Start(std::uint64_t id, RecordRequest request,
                                                        recording::WriterOptions options);

  std::uint64_t id() const { return id_; }
  const RecordRequest& request() const { return request_; }
  RecordingInfo info() const;
  recording::RecordingWriter& writer() { return *writer_; }

  bool Wants(const SlotIdentity& slot) const;
  bool Wants(const SessionIdentity& session) const;
  // Whether this recording needs every snapshot of the slot.
  bool NeedsAll(const SlotIdentity& slot) const;
  // Whether it takes any future job, and needs all of its snapshots.
  bool AwaitsJobs() const;
  // `seen`: the last ordinal that came before the recording, of replay `seen_replay` or an
  // earlier one. Requires: Wants().
  // `suppressed`: how many replays the live control had kept back by then.
  void Open(const SlotPtr& slot, std::uint64_t seen, std::uint64_t seen_replay = 0,
            std::uint64_t suppressed = 0);
  // `suppressed`: how many replays the live control has kept back so far. Those that the slot's
  // actions wanted are missing.
  void Consume(const StoredSnapshot& stored, const ComparisonPtr& comparison = nullptr,
               std::uint64_t suppressed = 0);
  void Lose(const Gap& gap);
  // Counts snapshots of which only the statistics are left. They lie in replays first..last.
  void LoseValues(const SlotPtr& slot, std::uint64_t count, std::uint64_t first_replay,
                  std::uint64_t last_replay);
  // Counts replays that were wanted and of which there is no snapshot. They lie in replays
  // first..last.
  void LoseReplays(const SlotPtr& slot, layout::LossCause cause, std::uint64_t count,
                   std::uint64_t first_replay, std::uint64_t last_replay);
  void Close(const SlotPtr& slot, std::uint64_t last_replay, std::uint64_t suppressed = 0);
  // Takes what the daemon found while it read; ignores replays before the recording.
  void Found(const Finding& finding);
  // From now on takes nothing after these heads, and nothing from new slots.
  void EndAt(const std::vector<RingHead>& heads);
  // Writes down where the recording ends in each slot. What was not read up to there is lost.
  void CloseSlots();
  void Flush() { Note(writer_->Flush()); }
  // What the session says of one kind as the recording begins: what is gone by then is none of its.
  void BeginNotSeen(const SessionPtr& session, const layout::NotSeen& not_seen);
  void NotSeen(const SessionPtr& session, const layout::NotSeen& not_seen);
  void EndSession(const SessionPtr& session, bool died);

  // Whether its time is over, but EndAt() was not called yet.
  bool IsLate() const;
  // Why it ended; kNone while it goes on.
  recording::StopReason Over() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};
  struct State {
    std::uint32_t id = 0;
    std::uint64_t next_ordinal = 1;  // the first one that is not accounted for yet
    std::uint64_t skipped = 0;
    std::uint32_t every = 1;         // replays 1, 1 + every, ... are wanted
    std::uint32_t period = 0;        // the slot's actions want these replays; 0: not a period
    std::uint64_t first_replay = 0;  // of the recording; 0: none yet
    std::uint64_t last_replay = 0;   // every replay up to it is accounted for
    std::uint64_t from_replay = 0;   // replays up to it came before
    std::uint64_t until = kNoEnd;    // the last ordinal that it takes
    std::uint64_t suppressed = 0;    // as the slot's head said last
    std::uint64_t kept_back = 0;     // of these, the ones that are accounted for or came before
    bool last_forced = false;        // the snapshot before was wanted by the live control
    bool in_body = false;            // of a conditional node: any number of snapshots a replay
    bool has_last = false;           // it has a snapshot of the last replay that was asked for
    bool done = false;               // it has all replays that were asked for
  };
  enum class Place { kBefore, kInside, kAfter };

  ActiveRecording(std::uint64_t id, RecordRequest request, Selector selector,
                  std::unique_ptr<recording::RecordingWriter> writer);
  Place PlaceOf(State* state, std::uint64_t replay) const;
  struct Missing {
    std::uint64_t last_ordinal = 0;
    std::uint64_t last_replay = 0;
    std::uint64_t before_replay = 0;  // 0: none came after
    layout::LossCause cause = layout::LossCause::kOverwritten;
    bool before_forced = false;
  };
  void Account(State* state, const Missing& missing);
  // Counts what was wanted up to `last_replay`, but for `lost` snapshots that are accounted for.
  // `before`: as the slot's state was at the snapshot before.
  void LoseKeptBack(const SlotPtr& slot, const State& before, std::uint64_t last_replay,
                    std::uint64_t lost);
  // Counts what the head says was kept back and no period told of.
  void LoseRestKeptBack(const SlotPtr& slot, const State& state);
  std::uint32_t EveryOf(const SlotIdentity& slot) const;
  void MarkClosed(const SlotPtr& slot, const State& state, std::uint64_t last_replay);
  std::optional<std::uint32_t> SessionId(const SessionPtr& session);
  void Note(const Result<void>& written);

  const std::uint64_t id_;
  const RecordRequest request_;
  const Selector selector_;
  const std::int64_t started_ns_;
  // When request().owner began, which tells it from a later process of that number; 0: no owner.
  const std::uint64_t owner_ticks_;
  const Clock::time_point started_ = Clock::now();
  std::unique_ptr<recording::RecordingWriter> writer_;
  std::map<SlotPtr, State> slots_;
  std::map<SessionPtr, std::uint32_t> sessions_;
  std::set<SessionPtr> alive_;
  // What was not seen before the recording and nobody wanted any longer when it began.
  std::map<std::pair<SessionPtr, layout::NotSeenKind>, layout::NotSeen::Gone> not_seen_before_;
  std::vector<std::string> labels_;
  std::uint64_t slot_count_ = 0;  // including closed ones
  Clock::time_point last_append_ = Clock::now();
  bool beyond_ = false;  // a replay after the last wanted one was seen
  bool said_stopped_ = false;
  bool ending_ = false;   // EndAt() was called
  bool is_late_ = false;  // EndAt() was called because its time was over
};

}  // namespace cgdebug::pipeline
