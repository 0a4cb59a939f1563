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
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/account.h"
#include "daemon/core/recording/damage.h"
#include "daemon/core/recording/recording_contents.h"
#include "daemon/core/recording/segments/segment_file.h"
#include "daemon/core/recording/segments/snapshot_index.h"
#include "daemon/core/recording/slot_accounts.h"
#include "daemon/core/recording/types.h"

namespace cgdebug::recording {

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

  const std::string& directory() const { return contents_.directory(); }
  const std::string& uuid() const { return contents_.uuid(); }  // 32 hex digits
  std::int64_t created_ns() const { return contents_.created_ns(); }
  std::uint64_t bytes() const { return contents_.bytes(); }  // of its segment files

  // By id. If a record is damaged, its uuid or probe name is empty.
  const std::vector<Session>& sessions() const { return contents_.tables().sessions; }
  const std::vector<Slot>& slots() const { return contents_.tables().slots; }
  const std::vector<Mark>& marks() const { return contents_.tables().marks; }
  // In the order in which they were written; then those that the reader found (kDamaged).
  const std::vector<Loss>& losses() const { return accounts_.losses(); }
  std::vector<Damage> damage() const { return contents_.damage(); }

  bool closed() const { return contents_.closed(); }
  StopReason stop_reason() const { return contents_.stop_reason(); }
  bool being_written() const;
  // Whether it was closed because it had everything it wanted, and nothing is missing, as far as
  // that is known without reading every payload (see VerifyRecording()).
  bool complete() const;
  // The account of one slot, by id.
  Account AccountOf(std::uint32_t slot) const { return accounts_.Of(slot); }
  // Every record up to this number was on the disk when the writer said so.
  std::uint64_t durable_number() const { return contents_.tables().durable_number; }
  std::uint64_t last_number() const { return contents_.last_number(); }

  std::uint64_t snapshot_count() const { return contents_.index().count(); }
  std::uint64_t snapshot_count(std::uint32_t slot) const { return contents_.index().count(slot); }
  // Finds the snapshot of a replay; if the replay has several iterations, that of the last.
  std::optional<SnapshotRef> Find(std::uint32_t slot, std::uint64_t replay) const;
  std::optional<SnapshotRef> FindOrdinal(std::uint32_t slot, std::uint64_t ordinal) const {
    return contents_.index().WithOrdinal(slot, ordinal);
  }
  std::optional<SnapshotRef> Last(std::uint32_t slot) const;
  // The snapshots of a slot, ascending, from replay `first` to `last`, both included.
  SnapshotRange Snapshots(std::uint32_t slot, std::uint64_t first = 0,
                          std::uint64_t last = kNoLimit) const;
  // Highest replay of any slot; 0 when there is none.
  std::uint64_t last_replay() const { return contents_.index().last_replay(); }

  // Fails: bytes that lie behind a URL could not be fetched since the last Refresh(), so what was
  // read is not all that there is.
  Result<void> FetchedAll() const { return contents_.FetchedAll(); }

  // Everything except the values.
  Result<Snapshot> Read(const SnapshotRef& ref) const { return ReadSnapshot(contents_, ref); }
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

  // --- records as they lie in the files, for repair, merge and the catalogue -------------------
  std::size_t segment_count() const { return contents_.segments().size(); }
  const SegmentFile& segment(std::size_t index) const { return *contents_.segments()[index]->file; }
  // Whether the last segment has its end record, and where the next record would begin in it.
  bool ended() const { return contents_.segments().back()->ended; }
  std::uint64_t end_offset() const { return contents_.segments().back()->scanned; }

 private:
  RecordingReader(std::string directory, const Options& options)
      : contents_(std::move(directory), options.trust_index), accounts_(contents_) {}
  Result<Payload> GetPayload(const SnapshotRef& ref,
                             Result<Payload> (SegmentFile::*get)(const Record&) const) const;
  Error DamagedValues(const SnapshotRef& ref, const Record& record) const;

  RecordingContents contents_;
  SlotAccounts accounts_;
};

}  // namespace cgdebug::recording
