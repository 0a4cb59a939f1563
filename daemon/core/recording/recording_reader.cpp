#include "daemon/core/recording/recording_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/files/recording_files.h"

namespace cgdebug::recording {

bool RecordingReader::IsRecording(const std::string& directory) {
  const auto paths = ListSegments(directory);
  return !paths.ok() || !paths->empty();  // Open() says why it cannot be read
}

Result<std::unique_ptr<RecordingReader>> RecordingReader::Open(const std::string& directory,
                                                               const Options& options) {
  std::unique_ptr<RecordingReader> reader(new RecordingReader(directory, options));
  if (auto read = reader->Refresh(); !read.ok()) return read.error();
  return reader;
}

Result<void> RecordingReader::Refresh() {
  if (auto read = contents_.Refresh(); !read.ok()) return read;
  accounts_.Refresh();
  return contents_.FetchedAll();
}

bool RecordingReader::complete() const {
  if (!accounts_.had_all() || !losses().empty() || !damage().empty()) return false;
  if (std::ranges::any_of(marks(), [](const Mark& mark) { return mark.not_seen.has_value(); })) {
    return false;
  }
  return std::ranges::all_of(slots(),
                             [this](const Slot& slot) { return AccountOf(slot.id).is_end_known; });
}

bool RecordingReader::being_written() const { return IsBeingWritten(directory()); }

std::optional<SnapshotRef> RecordingReader::Find(std::uint32_t slot, std::uint64_t replay) const {
  std::optional<SnapshotRef> last;
  for (const SnapshotRef& ref : Snapshots(slot, replay, replay)) last = ref;
  return last;
}

std::optional<SnapshotRef> RecordingReader::Last(std::uint32_t slot) const {
  return contents_.index().Last(slot);
}

SnapshotRange RecordingReader::Snapshots(std::uint32_t slot, std::uint64_t first,
                                         std::uint64_t last) const {
  return {&contents_.index(), slot, first, last};
}

Result<Payload> RecordingReader::GetPayload(const SnapshotRef& ref,
                                            Result<Payload> (SegmentFile::*get)(const Record&)
                                                const) const {
  const auto snapshot = Read(ref);
  if (!snapshot.ok()) return snapshot.error();
  const Slot& slot = slots()[ref.slot];
  if (snapshot->stats_only) {
    return Error{fmt::format("only statistics of probe '{}' were recorded at replay {}", slot.probe,
                             ref.replay)};
  }
  const auto record = ReadRecord(contents_, ref);
  if (!record.ok()) return record.error();
  const SegmentFile& file = segment(ref.segment);
  auto payload = (file.*get)(*record);
  if (!payload.ok()) return payload.error();
  if (!payload->bytes.empty() && Xxh3(payload->bytes) != record->header.payload_hash) {
    return DamagedValues(ref, *record);
  }
  return payload;
}

Error RecordingReader::DamagedValues(const SnapshotRef& ref, const Record& record) const {
  return Error{
      fmt::format("{} is damaged: the values of probe '{}' at replay {} (byte {}) do not match "
                  "their hash. See: cgdebug-cli verify {}",
                  segment(ref.segment).path(), slots()[ref.slot].probe, ref.replay,
                  record.payload_offset(), directory())};
}

Result<void> RecordingReader::VerifyPayload(const SnapshotRef& ref) const {
  const auto record = ReadRecord(contents_, ref);
  if (!record.ok()) return record.error();
  if (record->header.payload_bytes == 0) return {};
  const auto hash = segment(ref.segment).HashPayload(*record);
  if (!hash.ok()) return hash.error();
  if (*hash != record->header.payload_hash) return DamagedValues(ref, *record);
  return {};
}

}  // namespace cgdebug::recording
