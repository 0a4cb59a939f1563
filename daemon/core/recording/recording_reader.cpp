#include "daemon/core/recording/recording_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <utility>

#include "daemon/core/numerics/tensor_view.h"
#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/files/remote_files.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/segments/segment_walk.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::recording {

using layout::IndexRow;
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
  if (IsUrl(directory_)) {
    return Error{
        fmt::format("there is no segment in {}: it is not a recording, or none of it has been "
                    "uploaded yet",
                    directory_)};
  }
  if (!std::filesystem::exists(directory_, ignored)) {
    return Error{fmt::format("there is no {}", directory_)};
  }
  return Error{fmt::format("{} is not a recording: it holds no segment-000001.cgd", directory_)};
}

Result<void> RecordingReader::Refresh() {
  for (const auto& segment : segments_) segment->file->ForgetFailure();
  if (auto opened = OpenSegments(); !opened.ok()) return opened;
  for (std::size_t place = loaded_; place < segments_.size(); ++place) {
    if (auto size = segments_[place]->file->Refresh(); !size.ok()) return size;
    if (!segments_[place]->ended) LoadSegment(place);
  }
  loaded_ = segments_.size() - 1;
  FindMissing();
  SortEnds();
  return FetchedAll();
}

// What lies behind a URL may be there and yet not be had. Less than all of the catalogue would look
// like a shorter recording.
Result<void> RecordingReader::FetchedAll() const {
  for (const auto& segment : segments_) {
    if (const std::string failure = segment->file->failure(); !failure.empty()) {
      return Error{failure};
    }
  }
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
  if (std::ranges::any_of(marks_, [](const Mark& mark) { return mark.not_seen.has_value(); })) {
    return false;
  }
  return std::ranges::all_of(slots_,
                             [this](const Slot& slot) { return AccountOf(slot.id).is_end_known; });
}

Account RecordingReader::AccountOf(std::uint32_t slot) const {
  Account account;
  account.before = slots_[slot].from_ordinal;
  account.kept = snapshot_count(slot);
  std::uint64_t last = account.before;
  if (const auto newest = Last(slot)) last = std::max(last, newest->ordinal);
  if (const auto found = losses_of_.find(slot); found != losses_of_.end()) {
    for (const std::size_t place : found->second) {
      const Loss& loss = losses_[place];
      last = std::max(last, loss.last_ordinal);
      (loss.cause == LossCause::kValuesGone ? account.without_values
                                            : account.lost[std::string(ToText(loss.cause))]) +=
          loss.count;
    }
  }
  const auto closed = closed_at_.find(slot);
  if (closed != closed_at_.end()) last = std::max(last, closed->second);
  // A recording without any such mark was not written by a daemon. The slots of a job whose memory
  // was cut off have none.
  account.is_end_known = closed != closed_at_.end() || (!has_ends_ && had_all());
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
  std::optional<SnapshotRef> last;
  for (const SnapshotRef& ref : Snapshots(slot, replay, replay)) last = ref;
  return last;
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
  const ReadStatus status = file.Read(ref.offset, &record);
  if (status == ReadStatus::kUnread) return Error{file.failure()};
  if (status != ReadStatus::kRecord || record.type() != RecordType::kSnapshot) {
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
  auto snapshot = DecodeFields<Snapshot>(record->meta);
  const bool matches =
      snapshot && snapshot->slot == ref.slot && snapshot->slot < slots_.size() &&
      snapshot->replay == ref.replay && snapshot->iteration == ref.iteration &&
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

// --- segments, taken in by their indexes or record by record ------------------------------------

namespace {

// How many of `missing` ordinals, from replays after `after` and up to `last`, the slot's period
// can have wanted. At least one, because there is a gap. If the live control asked for the snapshot
// before them, it may have asked for all of them.
std::uint64_t WantedOf(const Slot& slot, std::uint64_t missing, std::uint64_t after,
                       std::uint64_t last) {
  const bool forced = after != 0 && !layout::Wants(slot.every, after);
  after = std::max(after, slot.from_replay);
  if (slot.every <= 1 || missing == 0 || forced || last < after) return missing;
  const std::uint64_t wanted =
      layout::WantedUpTo(slot.every, last) - layout::WantedUpTo(slot.every, after);
  return std::clamp<std::uint64_t>(wanted, 1, missing);
}

}  // namespace

void RecordingReader::AddDamage(std::size_t place, std::uint64_t offset, std::uint64_t bytes,
                                std::uint64_t missing_records, std::string what) const {
  const std::scoped_lock lock(mutex_);
  damage_.push_back(
      {segments_[place]->file->path(), offset, bytes, missing_records, std::move(what)});
}

void RecordingReader::LoadSegment(std::size_t place) {
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
  if (options_.trust_index && segment.scanned == layout::kFileHeaderBytes && LoadByIndex(place)) {
    return;
  }
  // Refresh() fails then; a scan would fetch the whole file before.
  if (!segment.file->failure().empty()) return;
  Scan(place);
}

// Takes a segment in by its index records: all of it if it is complete, else as far as its writer's
// note tells. False if the rest, or all of it, must be scanned.
bool RecordingReader::LoadByIndex(std::size_t place) {
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
bool RecordingReader::TakeIndexes(std::size_t place, std::uint64_t last_index,
                                  std::uint64_t next_number, std::uint64_t before) {
  const SegmentFile& file = *segments_[place]->file;
  struct Found {
    Record record;
    Index index;
  };
  std::vector<Found> chain;  // the last one first
  for (std::uint64_t offset = last_index; offset != 0;) {
    Found found;
    if (offset >= before || file.Read(offset, &found.record) != ReadStatus::kRecord) return false;
    auto index = DecodeFields<Index>(found.record.meta);
    if (found.record.type() != RecordType::kIndex || !index ||
        found.record.header.number + 1 != next_number) {
      return false;
    }
    before = offset;
    next_number = index->first_number;
    offset = index->previous_offset;
    found.index = *std::move(index);
    chain.push_back(std::move(found));
  }
  if (next_number != file.header().first_number) return false;

  std::vector<Record> others;
  for (auto found = chain.rbegin(); found != chain.rend(); ++found) {
    std::uint64_t last = 0;  // visits each once, so it never reads more than the file
    for (const std::uint64_t offset : found->index.others) {
      if (offset <= last || offset >= found->record.offset) return false;
      if (file.Read(offset, &others.emplace_back()) != ReadStatus::kRecord) return false;
      last = offset;
    }
  }
  const std::size_t loss_count = losses_.size();
  const std::size_t mark_count = marks_.size();
  for (const Record& record : others) AcceptOther(record);
  for (const Found& found : chain) {
    for (const SlotRun& run : found.index.runs) {
      if (run.slot < slots_.size()) continue;
      losses_.resize(loss_count);
      marks_.resize(mark_count);
      return false;
    }
  }
  for (auto found = chain.rbegin(); found != chain.rend(); ++found) {
    const std::uint64_t begin =
        std::max<std::uint64_t>(found->index.previous_offset, layout::kFileHeaderBytes);
    auto block = std::make_shared<IndexBlock>(
        static_cast<std::uint32_t>(place), [this, place, begin, record = std::move(found->record)] {
          return LoadRows(place, begin, record);
        });
    // Rows that cannot be fetched must be an error, and only Open() can give one.
    if (IsUrl(directory_)) static_cast<void>(block->RowsOf(0));
    index_.Add(std::move(block), found->index.runs);
  }
  return true;
}

// The rows of an index record. If they are damaged, walks through the records that they cover.
std::vector<IndexRow> RecordingReader::LoadRows(std::size_t place, std::uint64_t begin,
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

void RecordingReader::Scan(std::size_t place) {
  Segment& segment = *segments_[place];
  const bool is_last = place + 1 == segments_.size();
  std::vector<IndexRow> rows;
  SegmentWalk walk(*segment.file, segment.scanned,
                   {.is_last = is_last, .is_live = is_last && being_written()});
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

void RecordingReader::Accept(std::size_t place, const Record& record, std::vector<IndexRow>* rows) {
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
      if (snapshot && snapshot->slot < slots_.size()) {
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
      AcceptOther(record);
  }
}

// Sessions and slots stand at the head of every segment; the first good one of an id counts.
void RecordingReader::AcceptOther(const Record& record) {
  // No more ids than records fit into the files.
  const std::uint64_t most = bytes() / layout::kRecordAlignment;
  switch (record.type()) {
    case RecordType::kSession: {
      auto session = DecodeFields<Session>(record.meta);
      if (!session || session->id >= most) return;
      if (session->id >= sessions_.size()) sessions_.resize(session->id + 1);
      if (sessions_[session->id].uuid.empty()) sessions_[session->id] = *std::move(session);
      return;
    }
    case RecordType::kSlot: {
      auto slot = DecodeFields<Slot>(record.meta);
      if (!slot || slot->id >= most || slot->session >= sessions_.size()) return;
      if (slot->shape.size() > layout::kMaxDims ||
          numerics::PayloadBytes(slot->dtype, slot->shape) != slot->payload_bytes) {
        return;
      }
      while (slots_.size() <= slot->id) {
        const auto id = static_cast<std::uint32_t>(slots_.size());
        slots_.emplace_back().id = id;
      }
      if (slots_[slot->id].probe.empty()) slots_[slot->id] = *std::move(slot);
      return;
    }
    case RecordType::kLoss:
      if (auto loss = DecodeFields<Loss>(record.meta); loss && loss->slot < slots_.size()) {
        losses_.push_back(*loss);
      }
      return;
    case RecordType::kMark:
      if (auto mark = DecodeFields<Mark>(record.meta)) marks_.push_back(*std::move(mark));
      return;
    case RecordType::kCommit:
      if (const auto commit = DecodeFields<Commit>(record.meta)) {
        durable_number_ = std::max(durable_number_, commit->number);
      }
      return;
    default:
      return;
  }
}

// Finds snapshots that were lost with damaged records: gaps in a slot's ordinals that no loss
// explains.
void RecordingReader::FindMissing() {
  std::erase_if(losses_, [](const Loss& loss) { return loss.cause == LossCause::kDamaged; });
  FindMissingEnds();
  const bool any = std::ranges::any_of(
      damage(), [](const Damage& damage) { return damage.missing_records != 0; });
  if (!any) return;
  std::vector<Loss> found;
  for (const Slot& slot : slots_) {
    std::uint64_t ordinal = slot.from_ordinal;
    std::uint64_t replay = 0;
    for (const SnapshotRef& ref : Snapshots(slot.id)) {
      std::uint64_t missing = ref.ordinal - std::min(ref.ordinal, ordinal + 1);
      for (const Loss& loss : losses_) {
        if (missing == 0) break;
        if (loss.slot != slot.id || loss.first_ordinal <= ordinal) continue;
        if (loss.last_ordinal >= ref.ordinal) continue;
        missing -= std::min(missing, loss.last_ordinal - loss.first_ordinal + 1);
      }
      const auto snapshot = missing == 0 ? Snapshot() : Read(ref).value_or(Snapshot());
      missing -= std::min(missing, snapshot.skipped);
      const bool forced = slot.every > 1 && !layout::Wants(slot.every, ref.replay);
      if (!forced) missing = WantedOf(slot, missing, replay, ref.replay - 1);
      if (missing != 0) {
        const std::uint64_t out = slot.in_body ? 1 : 0;  // see Loss::after_replay
        found.push_back({slot.id, LossCause::kDamaged, missing, ordinal + 1, ref.ordinal - 1,
                         replay - std::min(replay, out), ref.replay + out, snapshot.timestamp_ns});
      }
      ordinal = ref.ordinal;
      replay = ref.replay;
    }
  }
  losses_.insert(losses_.end(), found.begin(), found.end());
}

// Finds what is missing between the last snapshot of a slot and the mark that closed it.
void RecordingReader::FindMissingEnds() {
  std::vector<Loss> found;
  for (const Mark& mark : marks_) {
    const bool is_slot = mark.slot >= 0 && static_cast<std::size_t>(mark.slot) < slots_.size();
    if (mark.kind != MarkKind::kSlotClosed || !is_slot) continue;
    const Slot& slot = slots_[static_cast<std::size_t>(mark.slot)];
    std::uint64_t ordinal = slot.from_ordinal;
    std::uint64_t replay = 0;
    if (const auto last = Last(slot.id); last && last->ordinal > ordinal) {
      ordinal = last->ordinal;
      replay = last->replay;
    }
    if (mark.ordinal <= ordinal) continue;
    std::uint64_t missing = mark.ordinal - ordinal;
    missing -= std::min(missing, mark.skipped);
    missing = WantedOf(slot, missing, replay, mark.replay);
    for (const Loss& loss : losses_) {
      if (loss.slot != slot.id || loss.first_ordinal <= ordinal) continue;
      missing -= std::min(missing, loss.last_ordinal - loss.first_ordinal + 1);
    }
    if (missing == 0) continue;
    const std::uint64_t out = slot.in_body ? 1 : 0;
    found.push_back({slot.id, LossCause::kDamaged, missing, ordinal + 1, mark.ordinal,
                     replay - std::min(replay, out), 0, mark.timestamp_ns});
  }
  losses_.insert(losses_.end(), found.begin(), found.end());
}

void RecordingReader::SortEnds() {
  has_ends_ = false;
  losses_of_.clear();
  closed_at_.clear();
  for (std::size_t i = 0; i < losses_.size(); ++i) losses_of_[losses_[i].slot].push_back(i);
  for (const Mark& mark : marks_) {
    has_ends_ = has_ends_ || mark.kind == MarkKind::kSessionDied;
    if (mark.kind != MarkKind::kSlotClosed) continue;
    has_ends_ = true;
    if (mark.slot < 0 || static_cast<std::size_t>(mark.slot) >= slots_.size()) continue;
    std::uint64_t& ordinal = closed_at_[static_cast<std::uint32_t>(mark.slot)];
    ordinal = std::max(ordinal, mark.ordinal);
  }
}

// --- every byte against every check -------------------------------------------------------------

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

Result<std::vector<Damage>> RecordingReader::Verify(
    const std::function<bool(std::uint64_t bytes)>& progress) const {
  // First what opening without trusting an index finds, then what only reading every byte can find.
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
    if (const std::string failure = file.failure(); !failure.empty()) return Error{failure};
    done += file.bytes();
  }
  return found;
}

}  // namespace cgdebug::recording
