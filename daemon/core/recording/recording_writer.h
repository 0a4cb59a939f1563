// recording_writer.h: writes a recording, or continues one.
//
//   auto writer = RecordingWriter::Open("runs/a.cgrec", {});
//   session.id = (*writer)->AddSession(session);
//   slot.id = (*writer)->AddSlot(slot);
//   (*writer)->Append(snapshot, bytes);
//   (*writer)->Close(StopReason::kRequested);
//
// A full disk, --max-size or a failed write stops the recording: what was written is closed and
// stays whole, later calls are refused and counted, and status() says why. Nothing is dropped
// silently.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/recording/commit_timer.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/record_log.h"
#include "daemon/core/recording/types.h"
#include "daemon/core/recording/written_slots.h"

namespace cgdebug::recording {

// Numbers as in RecordStartRequest of proto/control.proto.
enum class Durability {
  kNone,  // the system writes when it likes; safe from a crash of the daemon, not of the machine
  kInterval,  // on the disk at the latest after commit_interval or commit_bytes
  kEach,      // on the disk when Append() returns
};

// "none", "interval" or "each".
std::optional<Durability> ParseDurability(std::string_view text);

// Lower bounds for the command line.
inline constexpr std::uint64_t kMinRollBytes = 1u << 20;
inline constexpr std::uint64_t kMinMaxBytes = 64u << 10;  // below it hardly a snapshot fits

struct WriterOptions {
  std::uint64_t roll_bytes = 4ull << 30;  // a new segment file from here on
  std::uint64_t max_bytes = 0;            // of the recording; 0: no limit
  // The larger of both stays free on the disk: a recording stops before it leaves less.
  std::uint64_t min_free_bytes = 64u << 20;
  std::uint32_t min_free_percent = 0;
  Durability durability = Durability::kInterval;
  std::chrono::milliseconds commit_interval{1000};
  std::uint64_t commit_bytes = 1u << 30;
  std::uint64_t index_bytes = 64u << 20;  // an index at the latest after so much
  // Small snapshots go to the system at Flush() or Commit(), many at a time, instead of in
  // Append().
  bool gather = false;
  // Refuses to continue a recording that was ended, because it would mix in another job's values.
  bool only_unfinished = false;
};

// What a recording in this directory may still take of the disk. ~0 if that is not known.
std::uint64_t RoomOnDisk(const std::string& directory, const WriterOptions& options);

struct WriterStatus {
  std::uint64_t bytes = 0;  // of the segment files, without what is only set aside
  std::uint64_t records = 0;
  std::uint64_t snapshots = 0;
  std::uint64_t durable_snapshots = 0;  // of those, the ones that are on the disk for certain
  std::uint64_t durable_records = 0;
  std::uint64_t lost = 0;     // by AddLoss()
  std::uint64_t refused = 0;  // snapshots that came after the recording had stopped
  StopReason stopped = StopReason::kNone;
  std::string error;  // with kDiskFull and kWriteError
};

// A recording of the daemon.
struct RecordingInfo : WriterStatus {
  std::uint64_t id = 0;
  std::string directory;
  bool active = true;
  std::string state;                  // `stopped` in words
  std::vector<std::string> sessions;  // labels
  std::vector<std::string> probes;    // globs
  std::uint64_t slot_count = 0;
  std::int64_t started_ns = 0;

  // Numbers are those of `Recording` in proto/control.proto, names those in JSON.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "id"}, self.id);
    visit(Field{2, "directory"}, self.directory);
    visit(Field{5, "active"}, self.active);
    visit(Field{6, "state"}, self.state);
    visit(Field{7, "error"}, self.error);
    visit(Field{3, "sessions"}, self.sessions);
    visit(Field{4, "probes"}, self.probes);
    visit(Field{13, "slots"}, self.slot_count);
    visit(Field{9, "snapshots"}, self.snapshots);
    visit(Field{10, "durable_snapshots"}, self.durable_snapshots);
    visit(Field{11, "lost"}, self.lost);
    visit(Field{12, "refused"}, self.refused);
    visit(Field{8, "bytes"}, self.bytes);
    visit(Field{14, "started_ns"}, self.started_ns);
  }
};

// Thread: any. Hashing runs in the caller, outside the lock; writes go one after the other.
class RecordingWriter {
 public:
  // Makes the directory and its parents, or continues the recording in it, also after a crash.
  // Fails: another process writes there, it holds something else, no space.
  static Result<std::unique_ptr<RecordingWriter>> Open(const std::string& directory,
                                                       const WriterOptions& options);
  ~RecordingWriter();  // as Close(kDaemonStopped)
  RecordingWriter(const RecordingWriter&) = delete;
  RecordingWriter& operator=(const RecordingWriter&) = delete;

  const std::string& directory() const { return directory_; }

  // Returns the id. A session (by uuid) or slot (by session, index and generation) that the
  // recording has already keeps its id. Session::id and Slot::id are ignored.
  Result<std::uint32_t> AddSession(Session session);
  Result<std::uint32_t> AddSlot(Slot slot);
  // How far the recording has the slot, losses included; Slot::from_ordinal and 0 if it has
  // nothing. It is not written again up to there.
  using Position = WrittenSlots::Position;
  Position last(std::uint32_t slot) const;

  // Uses the snapshot's payload_hash unless it is 0. Ignores a snapshot that the recording has
  // already.
  // Requires: `payload` is the slot's payload_bytes long, or empty with stats_only.
  Result<void> Append(Snapshot snapshot, std::span<const std::byte> payload);
  Result<void> AddLoss(const Loss& loss);
  Result<void> AddMark(const Mark& mark);

  // Writes everything to the system: what was appended before survives the end of this process.
  Result<void> Flush();
  // Waits until everything written so far is on the disk, and notes that in the recording.
  Result<void> Commit();
  // Ends the recording. Later calls do nothing.
  Result<void> Close(StopReason reason);

  WriterStatus status() const;

 private:
  RecordingWriter(std::string directory, const WriterOptions& options, UniqueFd lock);
  Result<void> Resume();
  // `all`: those of its kind, of written_.
  template <typename Entry>
  Result<std::uint32_t> Add(Entry entry, layout::RecordType type, const std::vector<Entry>& all);
  // All of these with mutex_ held.
  Result<void> MakeRoom(std::uint64_t bytes);
  // A record without a payload, in room of its own. Fails: the recording has stopped then.
  Result<void> WriteMeta(layout::RecordType type, const std::string& meta);
  void Finish(StopReason reason, std::string error);
  Result<void> OrFinish(Result<void> done);  // ends the recording if it failed
  Error Refused() const;

  const std::string directory_;
  const WriterOptions options_;
  const UniqueFd lock_;

  mutable std::mutex mutex_;  // guards what follows
  WrittenSlots written_;
  RecordLog log_;
  StopReason stopped_ = StopReason::kNone;
  std::string error_;
  std::uint64_t refused_ = 0;  // snapshots
  std::uint64_t durable_records_ = 0;
  std::uint64_t durable_snapshots_ = 0;
  bool sync_failed_ = false;  // the system says so once, and then that all is well
  bool closed_ = false;

  std::mutex commit_mutex_;  // one Commit() at a time; before mutex_
  CommitTimer commit_timer_;
};

}  // namespace cgdebug::recording
