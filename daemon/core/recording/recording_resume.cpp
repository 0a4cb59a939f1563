#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/core/recording/recording_writer.h"
#include "daemon/core/recording/segment_walk.h"

// How a writer continues a recording that another writer began.
namespace cgdebug::recording {

using layout::RecordType;

// Reads what is there, ends its last segment after the last whole record, and begins a new segment.
Result<void> RecordingWriter::Resume() {
  auto opened = RecordingReader::Open(directory_);
  if (!opened.ok()) return opened.error();
  const RecordingReader& reader = **opened;
  if (options_.only_unfinished && reader.ended()) {
    return Error{directory_ +
                 " is a finished recording, and nothing is added to one. Choose another "
                 "directory, or remove it: cgdebug-cli rm -f '" +
                 directory_ + "'"};
  }
  sessions_ = reader.sessions();
  slots_ = reader.slots();
  last_.resize(slots_.size());
  for (const Slot& slot : slots_) {
    slot_ids_.emplace(SlotKey(slot.session, slot.index, slot.generation), slot.id);
    last_[slot.id].ordinal = slot.from_ordinal;
    if (const auto last = reader.Last(slot.id)) last_[slot.id] = {last->ordinal, last->replay};
  }
  for (const Loss& loss : reader.losses()) {
    Advance(loss);
    status_.lost += loss.count;
  }
  status_.snapshots = status_.durable_snapshots = reader.snapshot_count();
  status_.records = status_.durable_records = reader.last_number();
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

// What an index over the whole of the last segment has to tell.
void RecordingWriter::CollectIndex(const RecordingReader& reader, const SegmentFile& file) {
  const auto place = static_cast<std::uint32_t>(reader.segment_count() - 1);
  for (const Slot& slot : slots_) {
    for (const SnapshotRef& ref : reader.Snapshots(slot.id)) {
      if (ref.segment == place) {
        rows_.push_back({ref.slot, 0, ref.ordinal, ref.replay, ref.offset});
      }
    }
  }
  SegmentWalk walk(file, layout::kFileHeaderBytes, {.end = reader.end_offset()});
  while (const Record* record = walk.Next()) {
    if (IsOther(record->type())) others_.push_back(record->offset);
  }
}

}  // namespace cgdebug::recording
