#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "daemon/core/numerics/tensor_view.h"
#include "daemon/core/recording/checksum.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/recording_files.h"
#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/segment_walk.h"
#include "proto/layout/ring_layout.h"

// How a reader takes segments in: by their indexes, or record by record.
namespace cgdebug::recording {

using layout::IndexRow;
using layout::RecordType;

namespace {

// How many of `missing` ordinals the slot's period can have wanted, where they are of replays after
// `after` and up to `last`. One at least: that there is a gap is known. If the live control had
// asked for the snapshot before them, it may have asked for all of them.
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
  if (segment.scanned == layout::kFileHeaderBytes && first_number != last_number_ + 1) {
    if (first_number > last_number_ + 1) {
      AddDamage(place, 0, 0, first_number - last_number_ - 1,
                "the records before this file are missing");
    }
    last_number_ = first_number - 1;
  }
  if (options_.trust_index && segment.scanned == layout::kFileHeaderBytes && LoadByIndex(place)) {
    return;
  }
  Scan(place);
}

// Takes a segment in by its index records: one that is complete as a whole, another as far as the
// note of its writer tells. False when the rest, or all of it, is to be scanned.
bool RecordingReader::LoadByIndex(std::size_t place) {
  Segment& segment = *segments_[place];
  const SegmentFile& file = *segment.file;
  if (const auto end_record = file.ReadEnd()) {
    const auto end = Decode<End>(end_record->meta);
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

// Takes in what the chain of indexes that ends with `last_index` is about. False, and nothing
// taken, when they do not cover the segment's records up to `next_number` exactly.
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
    auto index = Decode<Index>(found.record.meta);
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
    std::uint64_t last = 0;  // each once: what is read is no more than the file
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
    index_.Add(
        std::make_shared<IndexBlock>(static_cast<std::uint32_t>(place),
                                     [this, place, begin, record = std::move(found->record)] {
                                       return LoadRows(place, begin, record);
                                     }),
        found->index.runs);
  }
  return true;
}

// The rows of an index record; when they are damaged, by walking through what they are about.
std::vector<IndexRow> RecordingReader::LoadRows(std::size_t place, std::uint64_t begin,
                                                const Record& record) const {
  const SegmentFile& file = *segments_[place]->file;
  std::vector<IndexRow> rows;
  const auto payload = file.ReadPayload(record);
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
    const auto snapshot = Decode<Snapshot>(found->meta);
    if (found->type() == RecordType::kSnapshot && snapshot) {
      rows.push_back({snapshot->slot, 0, snapshot->ordinal, snapshot->replay, found->offset});
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
  }
  last_number_ = number;
  closed_ = false;
  switch (record.type()) {
    case RecordType::kSnapshot: {
      const auto snapshot = Decode<Snapshot>(record.meta);
      if (snapshot && snapshot->slot < slots_.size()) {
        rows->push_back({snapshot->slot, 0, snapshot->ordinal, snapshot->replay, record.offset});
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
      const auto end = Decode<End>(record.meta);
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
      auto session = Decode<Session>(record.meta);
      if (!session || session->id >= most) return;
      if (session->id >= sessions_.size()) sessions_.resize(session->id + 1);
      if (sessions_[session->id].uuid.empty()) sessions_[session->id] = *std::move(session);
      return;
    }
    case RecordType::kSlot: {
      auto slot = Decode<Slot>(record.meta);
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
      if (auto loss = Decode<Loss>(record.meta); loss && loss->slot < slots_.size()) {
        losses_.push_back(*loss);
      }
      return;
    case RecordType::kMark:
      if (auto mark = Decode<Mark>(record.meta)) marks_.push_back(*std::move(mark));
      return;
    case RecordType::kCommit:
      if (const auto commit = Decode<Commit>(record.meta)) {
        durable_number_ = std::max(durable_number_, commit->number);
      }
      return;
    default:
      return;
  }
}

// Snapshots that went with damaged records: gaps in a slot's ordinals that no loss tells of.
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
        found.push_back({slot.id, LossCause::kDamaged, missing, ordinal + 1, ref.ordinal - 1,
                         replay, ref.replay, snapshot.timestamp_ns});
      }
      ordinal = ref.ordinal;
      replay = ref.replay;
    }
  }
  losses_.insert(losses_.end(), found.begin(), found.end());
}

// Between the last snapshot of a slot and the mark that closed it.
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
    found.push_back({slot.id, LossCause::kDamaged, missing, ordinal + 1, mark.ordinal, replay, 0,
                     mark.timestamp_ns});
  }
  losses_.insert(losses_.end(), found.begin(), found.end());
}

}  // namespace cgdebug::recording
