// recording_reader.h: opens a recording, even while it is written or after it was cut off anywhere.
//
//   auto reader = RecordingReader::Open("runs/a.cgrec");
//   if (!reader.ok()) return reader.error();
//   for (const Slot& slot : (*reader)->slots()) {
//     for (const SnapshotRef& ref : (*reader)->Snapshots(slot.id)) {
//       auto snapshot = (*reader)->Read(ref);         // statistics
//       auto payload = (*reader)->ReadPayload(ref);   // values
//     }
//   }
//
// Everything it returns has passed its checks when it was read: meta by CRC, payloads by hash.
// Anything else is an error that names file and offset, and is listed in damage().
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/account.h"
#include "daemon/core/recording/segments/segment_file.h"
#include "daemon/core/recording/segments/snapshot_index.h"
#include "daemon/core/recording/types.h"

namespace cgdebug::recording {

struct Damage {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;            // 0: not known
  std::uint64_t missing_records = 0;  // as far as the numbers of the records around it tell
  std::string what;
};

// Thread: const functions any; Refresh() alone.
class RecordingReader {
 public:
  static constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

  struct Options {
    bool trust_index = true;  // false: walks through every record, as verify and repair do
  };

  // `directory` may be a URL (remote_files.h). Then every index is fetched here, the snapshots when
  // they are asked for.
  // Fails: no directory, no readable segment in it, another version of the format; bytes that
  // cannot be fetched.
  static Result<std::unique_ptr<RecordingReader>> Open(const std::string& directory,
                                                       const Options& options);
  static Result<std::unique_ptr<RecordingReader>> Open(const std::string& directory) {
    return Open(directory, Options());
  }
  // Whether the directory looks like a recording: it holds a segment file.
  static bool IsRecording(const std::string& directory);

  // Takes in what was written since. Invalidates references and iterators from before.
  Result<void> Refresh();

  const std::string& directory() const { return directory_; }
  const std::string& uuid() const { return uuid_; }  // 32 hex digits
  std::int64_t created_ns() const { return created_ns_; }
  std::uint64_t bytes() const;  // of its segment files

  // By id. If a record is damaged, its uuid or probe name is empty.
  const std::vector<Session>& sessions() const { return sessions_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<Mark>& marks() const { return marks_; }
  // In the order in which they were written; then those that the reader found (kDamaged).
  const std::vector<Loss>& losses() const { return losses_; }
  std::vector<Damage> damage() const;

  bool closed() const { return closed_; }
  StopReason stop_reason() const { return stop_reason_; }
  bool being_written() const;
  // Whether it was closed because it had everything it wanted, and nothing is missing, as far as
  // that is known without reading every payload (see Verify()).
  bool complete() const;
  // The account of one slot, by id.
  Account AccountOf(std::uint32_t slot) const;
  // Every record up to this number was on the disk when the writer said so.
  std::uint64_t durable_number() const { return durable_number_; }
  std::uint64_t last_number() const { return last_number_; }

  std::uint64_t snapshot_count() const { return index_.count(); }
  std::uint64_t snapshot_count(std::uint32_t slot) const { return index_.count(slot); }
  // Finds the snapshot of a replay; if the replay has several iterations, that of the last.
  std::optional<SnapshotRef> Find(std::uint32_t slot, std::uint64_t replay) const;
  std::optional<SnapshotRef> FindOrdinal(std::uint32_t slot, std::uint64_t ordinal) const {
    return index_.WithOrdinal(slot, ordinal);
  }
  std::optional<SnapshotRef> First(std::uint32_t slot) const;
  std::optional<SnapshotRef> Last(std::uint32_t slot) const;
  // The snapshots of a slot, ascending, from replay `first` to `last`, both included.
  SnapshotRange Snapshots(std::uint32_t slot, std::uint64_t first = 0,
                          std::uint64_t last = kNoLimit) const;
  // The snapshots of a replay: one per slot that has it, by session, then in graph order.
  std::vector<SnapshotRef> Replay(std::uint64_t replay) const;
  // Highest replay of any slot; 0 when there is none.
  std::uint64_t last_replay() const { return index_.last_replay(); }

  // Fails: bytes that lie behind a URL could not be fetched since the last Refresh(), so what was
  // read is not all that there is.
  Result<void> FetchedAll() const;

  // Everything except the values.
  Result<Snapshot> Read(const SnapshotRef& ref) const;
  // The values, compared with their hash; read into memory, or on pages of the file (segment_file.h
  // says when that is dangerous).
  // Fails: also when only statistics were recorded.
  Result<Payload> ReadPayload(const SnapshotRef& ref) const {
    return GetPayload(ref, &SegmentFile::ReadPayload);
  }
  Result<Payload> MapPayload(const SnapshotRef& ref) const {
    return GetPayload(ref, &SegmentFile::MapPayload);
  }

  // Reads the values of one snapshot, if there are any, and checks them against their hash.
  // Fails: they are damaged; the message names file, offset, probe and replay.
  Result<void> VerifyPayload(const SnapshotRef& ref) const;

  // Reads every byte and makes every check. `progress` gets how many of bytes() are done, and stops
  // the reading by returning false. Findings are in the result, not in damage().
  Result<std::vector<Damage>> Verify(
      const std::function<bool(std::uint64_t bytes)>& progress = {}) const;

  // --- records as they lie in the files, for repair, merge and the catalogue -------------------
  std::size_t segment_count() const { return segments_.size(); }
  const SegmentFile& segment(std::size_t index) const { return *segments_[index]->file; }
  // Whether the last segment has its end record, and where the next record would begin in it.
  bool ended() const { return segments_.back()->ended; }
  std::uint64_t end_offset() const { return segments_.back()->scanned; }

 private:
  struct Segment {
    std::unique_ptr<SegmentFile> file;
    std::uint64_t scanned = layout::kFileHeaderBytes;  // where the next record is looked for
    bool ended = false;                                // by an end record
  };

  explicit RecordingReader(std::string directory, const Options& options);
  Result<void> OpenSegments();
  void LoadSegment(std::size_t place);
  bool LoadByIndex(std::size_t place);
  bool TakeIndexes(std::size_t place, std::uint64_t last_index, std::uint64_t next_number,
                   std::uint64_t before);
  void Scan(std::size_t place);
  void Accept(std::size_t place, const Record& record, std::vector<layout::IndexRow>* rows);
  void AcceptOther(const Record& record);
  Result<Payload> GetPayload(const SnapshotRef& ref,
                             Result<Payload> (SegmentFile::*get)(const Record&) const) const;
  std::vector<layout::IndexRow> LoadRows(std::size_t place, std::uint64_t begin,
                                         const Record& record) const;
  void FindMissing();
  void FindMissingEnds();
  void SortEnds();
  bool had_all() const;
  void AddDamage(std::size_t place, std::uint64_t offset, std::uint64_t bytes,
                 std::uint64_t missing_records, std::string what) const;
  Result<Record> ReadRecord(const SnapshotRef& ref) const;
  Error DamagedValues(const SnapshotRef& ref, const Record& record) const;

  std::string directory_;
  Options options_;
  std::string uuid_;
  std::int64_t created_ns_ = 0;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::size_t loaded_ = 0;  // segments before this one are taken in
  std::vector<Session> sessions_;
  std::vector<Slot> slots_;
  std::vector<Mark> marks_;
  std::vector<Loss> losses_;
  // By slot: its places in losses_, and the last ordinal of the marks that closed it.
  std::unordered_map<std::uint32_t, std::vector<std::size_t>> losses_of_;
  std::unordered_map<std::uint32_t, std::uint64_t> closed_at_;
  bool has_ends_ = false;  // whether any mark says that a slot or a session has ended
  SnapshotIndex index_;
  bool closed_ = false;
  StopReason stop_reason_ = StopReason::kNone;
  std::uint64_t durable_number_ = 0;
  std::uint64_t last_number_ = 0;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::vector<Damage> damage_;
};

}  // namespace cgdebug::recording
