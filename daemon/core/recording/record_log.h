// record_log.h: appends records to the segment files of a recording, with an index now and then.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/segments/segment_writer.h"
#include "daemon/core/recording/types.h"
#include "daemon/core/recording/written_slots.h"

namespace cgdebug::recording {

// After a failure it says what was not written, and takes no more than an end.
//
// Thread: one at a time.
class RecordLog {
 public:
  struct Options {
    std::uint64_t roll_bytes = 0;   // a new segment file from here on
    std::uint64_t index_bytes = 0;  // an index at the latest after so much
    bool gather = false;            // records wait for Flush()
  };

  // `lock`: of the directory. `written`: what each segment file repeats at its beginning. Both
  // outlive the log.
  RecordLog(std::string directory, const UniqueFd* lock, const WrittenSlots* written,
            const Options& options)
      : directory_(std::move(directory)), lock_(lock), written_(written), options_(options) {}

  // Begins a recording.
  Result<void> Start();
  // Goes on with the recording that `reader` has: ends its last segment after the last whole
  // record, and begins another. Requires: `written` has its slots.
  Result<void> Resume(const RecordingReader& reader);

  // One record, at once, or with the next Flush().
  Result<void> Append(layout::RecordType type, const std::string& meta) {
    return Write(type, meta, {}, 0);
  }
  Result<void> Append(const Snapshot& snapshot, const std::string& meta,
                      std::span<const std::byte> payload, std::uint64_t payload_hash);
  // From here on the end of a segment says that so many more were lost.
  void CountLost(std::uint64_t count) { lost_ += count; }

  bool IndexIsDue() const;
  Result<void> WriteIndex();
  // How many bytes the next index and an end after it take at most.
  std::uint64_t EndBytes() const;
  // Begins another segment if this one is too full for a record of so many bytes.
  Result<void> RollFor(std::uint64_t bytes);
  // Sets space aside in this segment. `*is_new`: the disk was asked for it.
  Result<void> Reserve(std::uint64_t bytes, bool* is_new);
  // The last record.
  Result<void> Close(StopReason reason);

  // Writes everything to the system.
  Result<void> Flush();
  // The segments that have to be synced for what was appended so far.
  std::vector<std::shared_ptr<SegmentWriter>> TakeUnsynced();

  std::uint64_t bytes() const { return bytes_before_ + segment_->bytes(); }
  std::uint64_t records() const { return next_number_ - 1; }
  std::uint64_t snapshots() const { return snapshots_; }
  std::uint64_t lost() const { return lost_; }
  // Snapshots that were accepted, and could not be written afterwards.
  std::uint64_t forgotten() const { return forgotten_; }
  std::uint64_t unsynced_bytes() const { return unsynced_bytes_; }
  // Whether the last failure was for want of space on the disk.
  bool disk_is_full() const;

 private:
  Result<void> StartSegment(std::uint32_t segment);
  void CollectIndex(const RecordingReader& reader, const SegmentFile& file);
  Result<void> Write(layout::RecordType type, const std::string& meta,
                     std::span<const std::byte> payload, std::uint64_t payload_hash);
  Result<void> WriteEnd(layout::RecordType type, StopReason reason);
  void ForgetUnwritten();

  const std::string directory_;
  const UniqueFd* const lock_;
  const WrittenSlots* const written_;
  const Options options_;
  Uuid uuid_ = {};
  std::shared_ptr<SegmentWriter> segment_;
  std::vector<std::shared_ptr<SegmentWriter>> unsynced_;  // complete ones
  std::uint64_t unsynced_bytes_ = 0;
  std::uint64_t bytes_before_ = 0;  // of the segments before this one
  std::uint64_t next_number_ = 1;
  std::uint64_t snapshots_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t forgotten_ = 0;
  std::vector<layout::IndexRow> rows_;  // since the last index
  std::vector<std::uint64_t> others_;
  std::uint64_t index_first_number_ = 1;
  std::uint64_t index_offset_ = 0;  // of the last index in this segment
  std::uint64_t index_begin_ = 0;   // where the next one's stretch begins
};

}  // namespace cgdebug::recording
