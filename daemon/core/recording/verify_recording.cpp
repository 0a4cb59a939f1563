#include "daemon/core/recording/verify_recording.h"

#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/recording_contents.h"
#include "daemon/core/recording/segments/segment_walk.h"

namespace cgdebug::recording {

using layout::RecordType;

namespace {

bool MetaIsReadable(const Record& record) {
  switch (record.type()) {
    case RecordType::kSession:
      return DecodeFields<Session>(record.meta).has_value();
    case RecordType::kSlot:
      return DecodeFields<Slot>(record.meta).has_value();
    case RecordType::kSnapshot:
      return DecodeFields<Snapshot>(record.meta).has_value();
    case RecordType::kLoss:
      return DecodeFields<Loss>(record.meta).has_value();
    case RecordType::kMark:
      return DecodeFields<Mark>(record.meta).has_value();
    case RecordType::kCommit:
      return DecodeFields<Commit>(record.meta).has_value();
    case RecordType::kIndex:
      return DecodeFields<Index>(record.meta).has_value();
    case RecordType::kRoll:
    case RecordType::kClose:
      return DecodeFields<End>(record.meta).has_value();
  }
  return true;  // of a later version
}

}  // namespace

Result<std::vector<Damage>> VerifyRecording(const std::string& directory,
                                            const std::function<void()>& on_snapshot) {
  // First what opening without trusting an index finds, then what only reading every byte can find.
  RecordingContents scanned(directory, /*trust_index=*/false);
  if (auto read = scanned.Refresh(); !read.ok()) return read.error();
  std::vector<Damage> found = scanned.damage();
  for (const auto& segment : scanned.segments()) {
    const SegmentFile& file = *segment->file;
    SegmentWalk walk(file, layout::kFileHeaderBytes, {.end = segment->scanned});
    while (const Record* next = walk.Next()) {
      const Record& record = *next;
      const std::uint64_t bytes = record.next() - record.offset;
      if (!MetaIsReadable(record)) {
        found.push_back(
            {file.path(), record.offset, bytes, 0, "the meta block of a record is damaged"});
      }
      if (!file.PayloadMatchesItsHash(record)) {
        found.push_back({file.path(), record.payload_offset(), record.header.payload_bytes, 0,
                         "values do not match their hash"});
      }
      if (!file.PaddingIsZero(record)) {
        found.push_back(
            {file.path(), record.offset, bytes, 0, "the space between values is not empty"});
      }
      if (on_snapshot && record.type() == RecordType::kSnapshot) on_snapshot();
    }
    if (const std::string failure = file.failure(); !failure.empty()) return Error{failure};
  }
  return found;
}

}  // namespace cgdebug::recording
