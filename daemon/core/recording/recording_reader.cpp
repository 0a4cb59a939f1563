#include "daemon/core/recording/recording_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <utility>

#include "daemon/core/recording/checksum.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/recording_files.h"

namespace cgdebug::recording {

using layout::RecordType;

RecordingReader::RecordingReader(std::string directory, const Options& options)
    : directory_(std::move(directory)), options_(options) {}

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

// Finds segments that were not there yet. A later one that cannot be read is damage, not an end.
Result<void> RecordingReader::OpenSegments() {
  std::string first_error;
  const auto paths = ListSegments(directory_);
  if (!paths.ok()) return paths.error();
  for (const std::string& path : *paths) {
    const bool known = std::any_of(segments_.begin(), segments_.end(), [&](const auto& segment) {
      return segment->file->path() == path;
    });
    if (known) continue;
    auto file = SegmentFile::Open(path);
    if (file.ok() && !segments_.empty() && (*file)->uuid() != uuid_) {
      file = Error{path + " belongs to another recording"};
    }
    if (!file.ok()) {
      if (first_error.empty()) first_error = file.error().message;
      // A writer has just made it, and will have filled it in by the next look.
      if (being_written()) continue;
      const std::scoped_lock lock(mutex_);
      const bool told = std::ranges::count(damage_, path, &Damage::file) != 0;
      if (!told) damage_.push_back({path, 0, 0, 0, file.error().message});
      continue;
    }
    if (segments_.empty()) {
      uuid_ = (*file)->uuid();
      created_ns_ = (*file)->header().created_ns;
    }
    segments_.push_back(std::make_unique<Segment>());
    segments_.back()->file = *std::move(file);
  }
  if (!segments_.empty()) return {};
  if (!first_error.empty()) return Error{first_error};
  std::error_code ignored;
  if (!std::filesystem::exists(directory_, ignored)) {
    return Error{fmt::format("there is no {}", directory_)};
  }
  return Error{fmt::format("{} is not a recording: it holds no segment-000001.cgd", directory_)};
}

Result<void> RecordingReader::Refresh() {
  if (auto opened = OpenSegments(); !opened.ok()) return opened;
  for (std::size_t place = loaded_; place < segments_.size(); ++place) {
    if (auto size = segments_[place]->file->Refresh(); !size.ok()) return size;
    if (!segments_[place]->ended) LoadSegment(place);
  }
  loaded_ = segments_.size() - 1;
  FindMissing();
  return {};
}

std::uint64_t RecordingReader::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& segment : segments_) bytes += segment->file->bytes();
  return bytes;
}

bool RecordingReader::had_all() const { return closed_ && HadAll(stop_reason_); }

bool RecordingReader::complete() const {
  if (!had_all() || !losses_.empty() || !damage().empty()) return false;
  return std::ranges::all_of(slots_,
                             [this](const Slot& slot) { return AccountOf(slot.id).is_end_known; });
}

Account RecordingReader::AccountOf(std::uint32_t slot) const {
  Account account;
  account.before = slots_[slot].from_ordinal;
  account.kept = snapshot_count(slot);
  std::uint64_t last = account.before;
  if (const auto newest = Last(slot)) last = std::max(last, newest->ordinal);
  for (const Loss& loss : losses_) {
    if (loss.slot != slot) continue;
    last = std::max(last, loss.last_ordinal);
    (loss.cause == LossCause::kValuesGone ? account.without_values
                                          : account.lost[std::string(ToText(loss.cause))]) +=
        loss.count;
  }
  // A recording without any such mark was written by something else than a daemon.
  bool any_closed = false, closed = false;
  for (const Mark& mark : marks_) {
    if (mark.kind != MarkKind::kSlotClosed) continue;
    any_closed = true;
    if (mark.slot != static_cast<std::int64_t>(slot)) continue;
    closed = true;
    last = std::max(last, mark.ordinal);
  }
  account.is_end_known = closed || (!any_closed && had_all());
  const std::uint64_t known = account.kept + account.lost_count();
  account.produced = std::max(last - account.before, known);
  account.not_wanted = account.produced - known;
  return account;
}

bool RecordingReader::being_written() const { return IsBeingWritten(directory_); }

std::vector<Damage> RecordingReader::damage() const {
  const std::scoped_lock lock(mutex_);
  return damage_;
}

std::optional<SnapshotRef> RecordingReader::Find(std::uint32_t slot, std::uint64_t replay) const {
  const auto found = index_.AtOrAfter(slot, replay);
  if (!found || found->replay != replay) return std::nullopt;
  return found;
}

std::optional<SnapshotRef> RecordingReader::First(std::uint32_t slot) const {
  return index_.AtOrAfter(slot, 0);
}

std::optional<SnapshotRef> RecordingReader::Last(std::uint32_t slot) const {
  return index_.Last(slot);
}

SnapshotRange RecordingReader::Snapshots(std::uint32_t slot, std::uint64_t first,
                                         std::uint64_t last) const {
  return {&index_, slot, first, last};
}

std::vector<SnapshotRef> RecordingReader::Replay(std::uint64_t replay) const {
  std::vector<SnapshotRef> refs;
  for (const Slot& slot : slots_) {
    if (const auto ref = Find(slot.id, replay)) refs.push_back(*ref);
  }
  std::ranges::stable_sort(refs, {}, [this](const SnapshotRef& ref) {
    return std::tuple(slots_[ref.slot].session, slots_[ref.slot].order);
  });
  return refs;
}

Result<Record> RecordingReader::ReadRecord(const SnapshotRef& ref) const {
  if (ref.segment >= segments_.size()) return Error{"no such segment in " + directory_};
  const SegmentFile& file = *segments_[ref.segment]->file;
  Record record;
  if (file.Read(ref.offset, &record) != ReadStatus::kRecord ||
      record.type() != RecordType::kSnapshot) {
    return Error{
        fmt::format("{} is damaged at byte {}: replay {} of probe '{}' cannot be read. See: "
                    "cgdebug-cli verify {}",
                    file.path(), ref.offset, ref.replay,
                    ref.slot < slots_.size() ? slots_[ref.slot].probe : "", directory_)};
  }
  return record;
}

Result<Snapshot> RecordingReader::Read(const SnapshotRef& ref) const {
  const auto record = ReadRecord(ref);
  if (!record.ok()) return record.error();
  auto snapshot = Decode<Snapshot>(record->meta);
  const bool matches =
      snapshot && snapshot->slot == ref.slot && snapshot->slot < slots_.size() &&
      snapshot->replay == ref.replay &&
      record->header.payload_bytes == (snapshot->stats_only ? 0 : slots_[ref.slot].payload_bytes);
  if (!matches) {
    return Error{
        fmt::format("{} holds another snapshot at byte {} than its index says. See: "
                    "cgdebug-cli verify {}",
                    segments_[ref.segment]->file->path(), ref.offset, directory_)};
  }
  snapshot->payload_bytes = record->header.payload_bytes;
  if (!snapshot->stats_only) snapshot->payload_hash = record->header.payload_hash;
  return *std::move(snapshot);
}

Result<Payload> RecordingReader::GetPayload(const SnapshotRef& ref,
                                            Result<Payload> (SegmentFile::*get)(const Record&)
                                                const) const {
  const auto snapshot = Read(ref);
  if (!snapshot.ok()) return snapshot.error();
  const Slot& slot = slots_[ref.slot];
  if (snapshot->stats_only) {
    return Error{fmt::format("only statistics of probe '{}' were recorded at replay {}", slot.probe,
                             ref.replay)};
  }
  const auto record = ReadRecord(ref);
  if (!record.ok()) return record.error();
  const SegmentFile& file = *segments_[ref.segment]->file;
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
                  segments_[ref.segment]->file->path(), slots_[ref.slot].probe, ref.replay,
                  record.payload_offset(), directory_)};
}

Result<void> RecordingReader::VerifyPayload(const SnapshotRef& ref) const {
  const auto record = ReadRecord(ref);
  if (!record.ok()) return record.error();
  if (record->header.payload_bytes == 0) return {};
  const auto hash = segments_[ref.segment]->file->HashPayload(*record);
  if (!hash.ok()) return hash.error();
  if (*hash != record->header.payload_hash) return DamagedValues(ref, *record);
  return {};
}

}  // namespace cgdebug::recording
