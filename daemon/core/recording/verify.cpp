#include <fmt/format.h>

#include <utility>

#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/segment_walk.h"

namespace cgdebug::recording {
namespace {

using layout::RecordType;

bool MetaIsReadable(const Record& record) {
  switch (record.type()) {
    case RecordType::kSession:
      return Decode<Session>(record.meta).has_value();
    case RecordType::kSlot:
      return Decode<Slot>(record.meta).has_value();
    case RecordType::kSnapshot:
      return Decode<Snapshot>(record.meta).has_value();
    case RecordType::kLoss:
      return Decode<Loss>(record.meta).has_value();
    case RecordType::kMark:
      return Decode<Mark>(record.meta).has_value();
    case RecordType::kCommit:
      return Decode<Commit>(record.meta).has_value();
    case RecordType::kIndex:
      return Decode<Index>(record.meta).has_value();
    case RecordType::kRoll:
    case RecordType::kClose:
      return Decode<End>(record.meta).has_value();
  }
  return true;  // of a later version
}

}  // namespace

Result<std::vector<Damage>> RecordingReader::Verify(
    const std::function<bool(std::uint64_t bytes)>& progress) const {
  // What an opening finds that takes no index for granted, and then what only a reader of every
  // byte can find.
  auto scanned = Open(directory_, Options{.trust_index = false});
  if (!scanned.ok()) return scanned.error();
  std::vector<Damage> found = (*scanned)->damage();
  std::uint64_t done = 0;
  for (const auto& segment : (*scanned)->segments_) {
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
      if (progress && !progress(done + record.next())) return found;
    }
    done += file.bytes();
  }
  return found;
}

}  // namespace cgdebug::recording
