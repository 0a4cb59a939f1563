// recording_contents.h: what the segment files of a recording hold: its tables, the index of its
// snapshots, where each file ends, and what cannot be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/damage.h"
#include "daemon/core/recording/record_tables.h"
#include "daemon/core/recording/segments/segment_file.h"
#include "daemon/core/recording/segments/snapshot_index.h"

namespace cgdebug::recording {

// Thread: const functions any; Refresh() alone.
class RecordingContents {
 public:
  struct Segment {
    std::unique_ptr<SegmentFile> file;
    std::uint64_t scanned = layout::kFileHeaderBytes;  // where the next record is looked for
    bool ended = false;                                // by an end record
  };

  // `trust_index`: false walks through every record.
  RecordingContents(std::string directory, bool trust_index)
      : directory_(std::move(directory)), trust_index_(trust_index) {}

  // Takes in what was written since. Invalidates references and iterators from before.
  // Fails: as RecordingReader::Open().
  Result<void> Refresh();
  // As RecordingReader::FetchedAll().
  Result<void> FetchedAll() const;

  const std::string& directory() const { return directory_; }
  const std::string& uuid() const { return uuid_; }
  std::int64_t created_ns() const { return created_ns_; }
  std::uint64_t bytes() const;
  const std::vector<std::unique_ptr<Segment>>& segments() const { return segments_; }
  const RecordTables& tables() const { return tables_; }
  const SnapshotIndex& index() const { return index_; }
  std::vector<Damage> damage() const { return damage_.All(); }
  bool closed() const { return closed_; }
  StopReason stop_reason() const { return stop_reason_; }
  std::uint64_t last_number() const { return last_number_; }

 private:
  Result<void> OpenSegments();
  void LoadSegment(std::size_t place);
  bool LoadByIndex(std::size_t place);
  bool TakeIndexes(std::size_t place, std::uint64_t last_index, std::uint64_t next_number,
                   std::uint64_t before);
  std::vector<layout::IndexRow> LoadRows(std::size_t place, std::uint64_t begin,
                                         const Record& record) const;
  void Scan(std::size_t place);
  void Accept(std::size_t place, const Record& record, std::vector<layout::IndexRow>* rows);
  // No more ids than records fit into the files.
  std::uint64_t MostIds() const { return bytes() / layout::kRecordAlignment; }
  void AddDamage(std::size_t place, std::uint64_t offset, std::uint64_t bytes,
                 std::uint64_t missing_records, std::string what) const;

  std::string directory_;
  bool trust_index_;
  std::string uuid_;
  std::int64_t created_ns_ = 0;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::size_t loaded_ = 0;  // segments before this one are taken in
  RecordTables tables_;
  SnapshotIndex index_;
  bool closed_ = false;
  StopReason stop_reason_ = StopReason::kNone;
  std::uint64_t last_number_ = 0;
  mutable DamageList damage_;
};

// Everything of a snapshot except its values, and the record that has them.
// Fails: it is damaged, or is another one than the index says; bytes that cannot be fetched.
Result<Record> ReadRecord(const RecordingContents& contents, const SnapshotRef& ref);
Result<Snapshot> ReadSnapshot(const RecordingContents& contents, const SnapshotRef& ref);

}  // namespace cgdebug::recording
