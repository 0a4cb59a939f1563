#include "daemon/core/recording/recording_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/files/remote_files.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/segments/segment_walk.h"

namespace cgdebug::recording {

using layout::IndexRow;
using layout::RecordType;

namespace {

struct IndexRecord {
  Record record;
  Index index;
};

// The index records of a segment in their order, found from the last one. nullopt unless they cover
// its records up to `next_number` exactly, and lie before `before`.
std::optional<std::vector<IndexRecord>> ReadChain(const SegmentFile& file, std::uint64_t last_index,
                                                  std::uint64_t next_number, std::uint64_t before) {
  std::vector<IndexRecord> chain;
  for (std::uint64_t offset = last_index; offset != 0;) {
    Record record;
    if (offset >= before || file.Read(offset, &record) != ReadStatus::kRecord) return std::nullopt;
    auto index = DecodeFields<Index>(record.meta);
    if (record.type() != RecordType::kIndex || !index || record.header.number + 1 != next_number) {
      return std::nullopt;
    }
    before = offset;
    next_number = index->first_number;
    offset = index->previous_offset;
    chain.push_back({std::move(record), *std::move(index)});
  }
  if (next_number != file.header().first_number) return std::nullopt;
  std::ranges::reverse(chain);
  return chain;
}

// The records without a payload that the indexes name; nullopt if one cannot be read.
std::optional<std::vector<Record>> ReadOthers(const SegmentFile& file,
                                              const std::vector<IndexRecord>& chain) {
  std::vector<Record> others;
  for (const IndexRecord& one : chain) {
    std::uint64_t last = 0;  // visits each once, so it never reads more than the file
    for (const std::uint64_t offset : one.index.others) {
      if (offset <= last || offset >= one.record.offset) return std::nullopt;
      if (file.Read(offset, &others.emplace_back()) != ReadStatus::kRecord) return std::nullopt;
      last = offset;
    }
  }
  return others;
}

Error NoSegment(const std::string& directory) {
  std::error_code ignored;
  if (IsUrl(directory)) {
    return Error{
        fmt::format("there is no segment in {}: it is not a recording, or none of it has been "
                    "uploaded yet",
                    directory)};
  }
  if (!std::filesystem::exists(directory, ignored)) {
    return Error{fmt::format("there is no {}", directory)};
  }
  return Error{fmt::format("{} is not a recording: it holds no segment-000001.cgd", directory)};
}

}  // namespace

// Finds segments that were not there yet. A later one that cannot be read is damage, not an end.
Result<void> RecordingContents::OpenSegments() {
  std::string first_error;
  const auto paths = ListSegments(directory_);
  if (!paths.ok()) return paths.error();
  for (const std::string& path : *paths) {
    const bool known = std::any_of(segments_.begin(), segments_.end(), [&](const auto& segment) {
      return segment->file->path() == path;
    });
    if (known) continue;
    auto file = SegmentFile::Open(path);
    // Nobody writes to it there, so it is not one that has just been begun.
    if (!file.ok() && IsUrl(path)) return file.error();
    if (file.ok() && !segments_.empty() && (*file)->uuid() != uuid_) {
      file = Error{path + " belongs to another recording"};
    }
    if (file.ok() && !IsNameOfSegment(path, (*file)->header().segment)) {
      file = Error{fmt::format("{} is a copy of segment {}, or was renamed; it is not read", path,
                               (*file)->header().segment)};
    }
    if (!file.ok()) {
      if (first_error.empty()) first_error = file.error().message;
      // A writer has just made it, and will have filled it in by the next look.
      if (IsBeingWritten(directory_)) continue;
      damage_.AddFile(path, file.error().message);
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
  return NoSegment(directory_);
}

Result<void> RecordingContents::Refresh() {
  for (const auto& segment : segments_) segment->file->ForgetFailure();
  if (auto opened = OpenSegments(); !opened.ok()) return opened;
  for (std::size_t place = loaded_; place < segments_.size(); ++place) {
    if (auto size = segments_[place]->file->Refresh(); !size.ok()) return size;
    if (!segments_[place]->ended) LoadSegment(place);
  }
  loaded_ = segments_.size() - 1;
  return FetchedAll();
}

// What lies behind a URL may be there and yet not be had. Less than all of the catalogue would look
// like a shorter recording.
Result<void> RecordingContents::FetchedAll() const {
  for (const auto& segment : segments_) {
    if (const std::string failure = segment->file->failure(); !failure.empty()) {
      return Error{failure};
    }
  }
  return {};
}

std::uint64_t RecordingContents::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& segment : segments_) bytes += segment->file->bytes();
  return bytes;
}

void RecordingContents::AddDamage(std::size_t place, std::uint64_t offset, std::uint64_t bytes,
                                  std::uint64_t missing_records, std::string what) const {
  damage_.Add({segments_[place]->file->path(), offset, bytes, missing_records, std::move(what)});
}

void RecordingContents::LoadSegment(std::size_t place) {
  Segment& segment = *segments_[place];
  const std::uint64_t first_number = segment.file->header().first_number;
  if (segment.scanned == layout::kFileHeaderBytes && first_number <= last_number_) {
    AddDamage(
        place, 0, segment.file->bytes(), 0,
        fmt::format("it begins with record {}, and the files before it have records up to {}; "
                    "it is not read",
                    first_number, last_number_));
    segment.scanned = segment.file->bytes();
    segment.ended = true;
    closed_ = false;
    return;
  }
  if (segment.scanned == layout::kFileHeaderBytes && first_number != last_number_ + 1) {
    AddDamage(place, 0, 0, first_number - last_number_ - 1,
              "the records before this file are missing");
    last_number_ = first_number - 1;
  }
  if (trust_index_ && segment.scanned == layout::kFileHeaderBytes && LoadByIndex(place)) return;
  // Refresh() fails then; a scan would fetch the whole file before.
  if (!segment.file->failure().empty()) return;
  Scan(place);
}

// Takes a segment in by its index records: all of it if it is complete, else as far as its writer's
// note tells. False if the rest, or all of it, must be scanned.
bool RecordingContents::LoadByIndex(std::size_t place) {
  Segment& segment = *segments_[place];
  const SegmentFile& file = *segment.file;
  if (const auto end_record = file.ReadEnd()) {
    const auto end = DecodeFields<End>(end_record->meta);
    if (!end ||
        !TakeIndexes(place, end->index_offset, end_record->header.number, end_record->offset)) {
      return false;
    }
    Accept(place, *end_record, nullptr);
    return true;
  }
  const auto note = ReadIndexNote(directory_);
  Record index;
  if (!note || note->segment != file.header().segment ||
      file.Read(note->offset, &index) != ReadStatus::kRecord ||
      !TakeIndexes(place, note->offset, index.header.number + 1, index.next())) {
    return false;
  }
  last_number_ = index.header.number;
  segment.scanned = index.next();
  return false;
}

// Takes in what the chain of indexes that ends with `last_index` covers. False, with nothing taken
// in, unless they cover the segment's records up to `next_number` exactly.
bool RecordingContents::TakeIndexes(std::size_t place, std::uint64_t last_index,
                                    std::uint64_t next_number, std::uint64_t before) {
  const SegmentFile& file = *segments_[place]->file;
  auto chain = ReadChain(file, last_index, next_number, before);
  const auto others = chain ? ReadOthers(file, *chain) : std::nullopt;
  if (!others) return false;
  const std::size_t loss_count = tables_.losses.size();
  const std::size_t mark_count = tables_.marks.size();
  for (const Record& record : *others) tables_.Take(record, MostIds());
  for (const IndexRecord& one : *chain) {
    for (const SlotRun& run : one.index.runs) {
      if (run.slot < tables_.slots.size()) continue;
      tables_.losses.resize(loss_count);
      tables_.marks.resize(mark_count);
      return false;
    }
  }
  for (IndexRecord& one : *chain) {
    const std::uint64_t begin =
        std::max<std::uint64_t>(one.index.previous_offset, layout::kFileHeaderBytes);
    auto block = std::make_shared<IndexBlock>(static_cast<std::uint32_t>(place),
                                              [this, place, begin, record = std::move(one.record)] {
                                                return LoadRows(place, begin, record);
                                              });
    // Rows that cannot be fetched must be an error, and only Open() can give one.
    if (IsUrl(directory_)) block->Load();
    index_.Add(std::move(block), one.index.runs);
  }
  return true;
}

// The rows of an index record. If they are damaged, walks through the records that they cover.
std::vector<IndexRow> RecordingContents::LoadRows(std::size_t place, std::uint64_t begin,
                                                  const Record& record) const {
  const SegmentFile& file = *segments_[place]->file;
  std::vector<IndexRow> rows;
  const auto payload = file.ReadPayload(record);
  if (!payload.ok() && IsUrl(directory_)) {
    return rows;  // Open() fails, see FetchedAll()
  }
  const bool good = payload.ok() && payload->bytes.size() % sizeof(IndexRow) == 0 &&
                    Xxh3(payload->bytes) == record.header.payload_hash;
  if (good) {
    rows.resize(payload->bytes.size() / sizeof(IndexRow));
    std::memcpy(rows.data(), payload->bytes.data(), payload->bytes.size());
    const auto key = [](const IndexRow& row) { return std::tuple(row.slot, row.ordinal); };
    if (std::ranges::is_sorted(rows, {}, key)) return rows;
  }
  const std::string what = payload.ok() ? "an index is damaged"
                                        : "an index was not read (" + payload.error().message + ")";
  AddDamage(place, record.offset, record.next() - record.offset, 0,
            what + "; its snapshots were found by walking through them");
  rows.clear();
  SegmentWalk walk(file, begin, {.end = record.offset});
  while (const Record* found = walk.Next()) {
    const auto snapshot = DecodeFields<Snapshot>(found->meta);
    if (found->type() == RecordType::kSnapshot && snapshot) {
      rows.push_back({snapshot->slot, snapshot->iteration, snapshot->ordinal, snapshot->replay,
                      found->offset});
    }
  }
  SnapshotIndex::Sort(&rows);
  return rows;
}

void RecordingContents::Scan(std::size_t place) {
  Segment& segment = *segments_[place];
  const bool is_last = place + 1 == segments_.size();
  std::vector<IndexRow> rows;
  SegmentWalk walk(*segment.file, segment.scanned,
                   {.is_last = is_last, .is_live = is_last && IsBeingWritten(directory_)});
  while (!segment.ended) {
    const Record* record = walk.Next();
    if (const auto& hole = walk.hole()) {
      const std::uint64_t missing =
          hole->next_number - std::min(hole->next_number, last_number_ + 1);
      AddDamage(place, hole->offset, hole->bytes, missing, "no readable record here");
      last_number_ = std::max(last_number_, hole->next_number - 1);
    }
    if (record == nullptr) break;
    Accept(place, *record, &rows);
  }
  segment.scanned = walk.offset();
  if (!segment.ended && !is_last) {
    AddDamage(place, segment.scanned, 0, 0, "it ends without its last records");
  }
  if (rows.empty()) return;
  SnapshotIndex::Sort(&rows);
  const auto runs = SnapshotIndex::RunsOf(rows);
  index_.Add(
      std::make_shared<IndexBlock>(static_cast<std::uint32_t>(place),
                                   [rows = std::move(rows)]() mutable { return std::move(rows); }),
      runs);
}

void RecordingContents::Accept(std::size_t place, const Record& record,
                               std::vector<IndexRow>* rows) {
  const std::uint64_t number = record.header.number;
  if (rows != nullptr && number != last_number_ + 1) {
    const std::uint64_t missing = number - std::min(number, last_number_ + 1);
    AddDamage(place, record.offset, 0, missing,
              fmt::format("record {} follows record {}", number, last_number_));
    if (number <= last_number_) return;  // each record counts once
  }
  last_number_ = number;
  closed_ = false;
  switch (record.type()) {
    case RecordType::kSnapshot: {
      const auto snapshot = DecodeFields<Snapshot>(record.meta);
      if (snapshot && snapshot->slot < tables_.slots.size()) {
        rows->push_back({snapshot->slot, snapshot->iteration, snapshot->ordinal, snapshot->replay,
                         record.offset});
      } else {
        AddDamage(place, record.offset, record.next() - record.offset, 0,
                  "a snapshot of no known probe");
      }
      return;
    }
    case RecordType::kRoll:
    case RecordType::kClose: {
      segments_[place]->ended = true;
      segments_[place]->scanned = record.next();
      const auto end = DecodeFields<End>(record.meta);
      closed_ = end.has_value() && record.type() == RecordType::kClose;
      if (closed_) stop_reason_ = end->reason;
      return;
    }
    default:
      tables_.Take(record, MostIds());
  }
}

Result<Record> ReadRecord(const RecordingContents& contents, const SnapshotRef& ref) {
  const std::vector<Slot>& slots = contents.tables().slots;
  if (ref.segment >= contents.segments().size())
    return Error{"no such segment in " + contents.directory()};
  const SegmentFile& file = *contents.segments()[ref.segment]->file;
  Record record;
  const ReadStatus status = file.Read(ref.offset, &record);
  if (status == ReadStatus::kUnread) return Error{file.failure()};
  if (status != ReadStatus::kRecord || record.type() != RecordType::kSnapshot) {
    return Error{
        fmt::format("{} is damaged at byte {}: replay {} of probe '{}' cannot be read. See: "
                    "cgdebug-cli verify {}",
                    file.path(), ref.offset, ref.replay,
                    ref.slot < slots.size() ? slots[ref.slot].probe : "", contents.directory())};
  }
  return record;
}

Result<Snapshot> ReadSnapshot(const RecordingContents& contents, const SnapshotRef& ref) {
  const auto record = ReadRecord(contents, ref);
  if (!record.ok()) return record.error();
  const std::vector<Slot>& slots = contents.tables().slots;
  auto snapshot = DecodeFields<Snapshot>(record->meta);
  const bool matches =
      snapshot && snapshot->slot == ref.slot && snapshot->slot < slots.size() &&
      snapshot->replay == ref.replay && snapshot->iteration == ref.iteration &&
      record->header.payload_bytes == (snapshot->stats_only ? 0 : slots[ref.slot].payload_bytes);
  if (!matches) {
    return Error{fmt::format(
        "{} holds another snapshot at byte {} than its index says. See: "
        "cgdebug-cli verify {}",
        contents.segments()[ref.segment]->file->path(), ref.offset, contents.directory())};
  }
  snapshot->payload_bytes = record->header.payload_bytes;
  if (!snapshot->stats_only) snapshot->payload_hash = record->header.payload_hash;
  return *std::move(snapshot);
}

}  // namespace cgdebug::recording
