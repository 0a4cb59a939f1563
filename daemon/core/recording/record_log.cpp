#include "daemon/core/recording/record_log.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "daemon/core/base/realtime.h"
#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/segments/segment_walk.h"

namespace cgdebug::recording {

using layout::IndexRow;
using layout::RecordType;

namespace {

constexpr std::size_t kIndexRows = 16384;  // an index at the latest after so many

}  // namespace

Result<void> RecordLog::Start() {
  if (getrandom(uuid_.data(), uuid_.size(), 0) != static_cast<ssize_t>(uuid_.size())) {
    return ErrnoError("no random number for a new recording");
  }
  return StartSegment(1);
}

Result<void> RecordLog::StartSegment(std::uint32_t segment) {
  auto created = SegmentWriter::Create(directory_, uuid_, segment, next_number_);
  if (!created.ok()) return created.error();
  segment_ = *std::move(created);
  index_offset_ = 0;
  index_begin_ = segment_->bytes();
  index_first_number_ = next_number_;
  rows_.clear();
  others_.clear();
  for (const Session& session : written_->sessions()) {
    if (auto done = Append(RecordType::kSession, EncodeFields(session)); !done.ok()) return done;
  }
  for (const Slot& slot : written_->slots()) {
    if (auto done = Append(RecordType::kSlot, EncodeFields(slot)); !done.ok()) return done;
  }
  return {};
}

Result<void> RecordLog::Resume(const RecordingReader& reader) {
  snapshots_ = reader.snapshot_count();
  next_number_ = reader.last_number() + 1;
  const SegmentFile& last = reader.segment(reader.segment_count() - 1);
  std::memcpy(uuid_.data(), last.header().uuid, uuid_.size());
  bytes_before_ = reader.bytes();
  if (!reader.ended()) {
    auto segment = SegmentWriter::Continue(last.path(), reader.end_offset(), next_number_);
    if (!segment.ok()) return segment.error();
    bytes_before_ -= last.bytes();
    segment_ = *std::move(segment);
    index_offset_ = 0;
    index_first_number_ = last.header().first_number;
    CollectIndex(reader, last);
    if (auto ended = WriteEnd(RecordType::kRoll, StopReason::kNone); !ended.ok()) return ended;
    if (auto synced = segment_->Sync(); !synced.ok()) return synced;
    bytes_before_ += segment_->bytes();
  }
  return StartSegment(last.header().segment + 1);
}

// Collects the rows of an index over the whole last segment.
void RecordLog::CollectIndex(const RecordingReader& reader, const SegmentFile& file) {
  const auto place = static_cast<std::uint32_t>(reader.segment_count() - 1);
  for (const Slot& slot : written_->slots()) {
    for (const SnapshotRef& ref : reader.Snapshots(slot.id)) {
      if (ref.segment == place) {
        rows_.push_back({ref.slot, ref.iteration, ref.ordinal, ref.replay, ref.offset});
      }
    }
  }
  SegmentWalk walk(file, layout::kFileHeaderBytes, {.end = reader.end_offset()});
  while (const Record* record = walk.Next()) {
    if (IsOther(record->type())) others_.push_back(record->offset);
  }
}

Result<void> RecordLog::Append(const Snapshot& snapshot, const std::string& meta,
                               std::span<const std::byte> payload, std::uint64_t payload_hash) {
  const std::uint64_t offset = segment_->bytes();
  auto written = Write(RecordType::kSnapshot, meta, payload, payload_hash);
  if (!written.ok()) return written;
  ++snapshots_;
  rows_.push_back({snapshot.slot, snapshot.iteration, snapshot.ordinal, snapshot.replay, offset});
  return {};
}

Result<void> RecordLog::Write(RecordType type, const std::string& meta,
                              std::span<const std::byte> payload, std::uint64_t payload_hash) {
  const std::uint64_t offset = segment_->bytes();
  auto appended = segment_->Append(type, next_number_, meta, payload, payload_hash);
  if (!appended.ok()) {
    ForgetUnwritten();
    return appended;
  }
  ++next_number_;
  if (IsOther(type)) others_.push_back(offset);
  unsynced_bytes_ += segment_->bytes() - offset;
  return options_.gather ? Result<void>() : Flush();
}

bool RecordLog::IndexIsDue() const {
  return rows_.size() >= kIndexRows || segment_->bytes() - index_begin_ >= options_.index_bytes;
}

Result<void> RecordLog::WriteIndex() {
  SnapshotIndex::Sort(&rows_);
  Index index;
  index.previous_offset = index_offset_;
  index.first_number = index_first_number_;
  index.runs = SnapshotIndex::RunsOf(rows_);
  index.others = others_;
  const auto rows = std::as_bytes(std::span(rows_));
  const std::uint64_t offset = segment_->bytes();
  auto written =
      Write(RecordType::kIndex, EncodeFields(index), rows, rows.empty() ? 0 : Xxh3(rows));
  if (written.ok()) written = Flush();
  if (!written.ok()) return written;
  index_offset_ = offset;
  WriteIndexNote(*lock_, {segment_->segment(), offset});
  index_first_number_ = next_number_;
  index_begin_ = segment_->bytes();
  rows_.clear();
  others_.clear();
  return {};
}

std::uint64_t RecordLog::EndBytes() const {
  return rows_.size() * sizeof(IndexRow) + others_.size() * 10 + 4096;
}

Result<void> RecordLog::RollFor(std::uint64_t bytes) {
  if (segment_->bytes() + bytes <= options_.roll_bytes ||
      segment_->bytes() <= index_begin_ + layout::kFileHeaderBytes) {
    return {};
  }
  if (auto ended = WriteEnd(RecordType::kRoll, StopReason::kNone); !ended.ok()) return ended;
  bytes_before_ += segment_->bytes();
  unsynced_.push_back(segment_);
  return StartSegment(segment_->segment() + 1);
}

Result<void> RecordLog::Reserve(std::uint64_t bytes, bool* is_new) {
  const std::uint64_t before = segment_->reserved_end();
  auto reserved = segment_->Reserve(bytes);
  *is_new = segment_->reserved_end() != before;
  return reserved;
}

Result<void> RecordLog::Close(StopReason reason) { return WriteEnd(RecordType::kClose, reason); }

Result<void> RecordLog::WriteEnd(RecordType type, StopReason reason) {
  if (auto written = WriteIndex(); !written.ok()) return written;
  End end;
  end.index_offset = index_offset_;
  end.reason = reason;
  end.snapshots = snapshots_;
  end.lost = lost_;
  end.timestamp_ns = RealtimeNs();
  constexpr std::size_t kMetaBytes = layout::kEndRecordBytes - sizeof(layout::RecordHeader);
  end.padding.assign(kMetaBytes - EncodeFields(end).size() - 3,
                     '\0');  // two bytes of tag and length
  while (EncodeFields(end).size() < kMetaBytes) end.padding.push_back('\0');
  if (auto written = Append(type, EncodeFields(end)); !written.ok()) return written;
  if (auto flushed = Flush(); !flushed.ok()) return flushed;
  return segment_->Trim();
}

Result<void> RecordLog::Flush() {
  auto flushed = segment_->Flush();
  if (!flushed.ok()) ForgetUnwritten();
  return flushed;
}

std::vector<std::shared_ptr<SegmentWriter>> RecordLog::TakeUnsynced() {
  std::vector<std::shared_ptr<SegmentWriter>> segments = std::exchange(unsynced_, {});
  if (segments.empty() || segments.back() != segment_) segments.push_back(segment_);
  unsynced_bytes_ = 0;
  return segments;
}

bool RecordLog::disk_is_full() const { return segment_->error_number() == ENOSPC; }

// After a failure: counts records that were accepted but not written.
void RecordLog::ForgetUnwritten() {
  const std::uint64_t end = segment_->bytes();
  const std::size_t snapshots =
      std::erase_if(rows_, [&](const IndexRow& row) { return row.offset >= end; });
  std::erase_if(others_, [&](std::uint64_t offset) { return offset >= end; });
  snapshots_ -= snapshots;
  forgotten_ += snapshots;
  next_number_ = segment_->unwritten_number();
}

}  // namespace cgdebug::recording
