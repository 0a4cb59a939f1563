#include "daemon/core/recording/recording_writer.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "daemon/core/base/realtime.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/segments/segment_walk.h"

namespace cgdebug::recording {

using layout::IndexRow;
using layout::RecordType;

namespace {

constexpr std::size_t kIndexRows = 16384;  // an index at the latest after so many

struct DiskRoom {
  std::uint64_t free;
  std::uint64_t kept;  // must stay free
};
std::optional<DiskRoom> MeasureDisk(const std::string& directory, const WriterOptions& options) {
  struct statvfs status = {};
  if (statvfs(directory.c_str(), &status) != 0) return std::nullopt;
  const std::uint64_t part = status.f_blocks / 100 * status.f_frsize * options.min_free_percent;
  return DiskRoom{std::uint64_t{status.f_bavail} * status.f_frsize,
                  std::max(options.min_free_bytes, part)};
}

// Fails: less of the disk is free than must stay free.
Result<void> CheckFree(const std::string& directory, const WriterOptions& options) {
  const auto room = MeasureDisk(directory, options);
  if (!room || room->free >= room->kept) return {};
  return Error{fmt::format(
      "{} MiB are free on the disk of {}, and {} MiB must stay free. Choose another directory, or "
      "leave less free: --min-free-disk 0 of cgdebug-cli run and record start, or "
      "CGDEBUG_MIN_FREE_DISK=0 where the daemon starts",
      room->free >> 20, directory, room->kept >> 20)};
}

// Readable by its owner alone, whatever the umask is: it holds the job's values, names and command.
Result<void> MakeDirectory(const std::string& directory) {
  namespace fs = std::filesystem;
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) return Error{fmt::format("cannot make {}: {}", directory, error.message())};
  const int failed = ::mkdir(path.c_str(), S_IRWXU) == 0 ? 0 : errno;
  if (failed == 0 || fs::is_directory(path, error)) return {};
  return ErrnoError("cannot make " + directory, failed);
}

// A file that is not part of a recording, or "".
Result<std::string> FindOtherFile(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename() != "lock") return entry->path().filename().string();
  }
  if (error) return ErrnoError("cannot read " + directory, error.value());
  return std::string();
}

}  // namespace

std::uint64_t RoomOnDisk(const std::string& directory, const WriterOptions& options) {
  const auto room = MeasureDisk(directory, options);
  if (!room) return ~std::uint64_t{0};
  return room->free - std::min(room->free, room->kept);
}

std::optional<Durability> ParseDurability(std::string_view text) {
  if (text == "none") return Durability::kNone;
  if (text == "interval") return Durability::kInterval;
  if (text == "each") return Durability::kEach;
  return std::nullopt;
}

RecordingWriter::RecordingWriter(std::string directory, const WriterOptions& options, UniqueFd lock)
    : directory_(std::move(directory)), options_(options), lock_(std::move(lock)) {}

RecordingWriter::~RecordingWriter() {
  // Errors go to status(), which nobody can ask any more.
  [[maybe_unused]] const auto closed = Close(StopReason::kDaemonStopped);
}

Result<std::unique_ptr<RecordingWriter>> RecordingWriter::Open(const std::string& directory,
                                                               const WriterOptions& options) {
  if (auto made = MakeDirectory(directory); !made.ok()) return made.error();
  const auto segments = ListSegments(directory);
  if (!segments.ok()) return segments.error();
  const bool exists = !segments->empty();
  if (!exists) {
    const Result<std::string> other = FindOtherFile(directory);
    if (!other.ok()) return other.error();
    if (!other->empty()) {
      return Error{fmt::format("{} holds other files ({}); choose a directory of its own",
                               directory, *other)};
    }
  }
  // Checked before anything is written: a recording that ends with its first snapshot is useless.
  if (auto is_free = CheckFree(directory, options); !is_free.ok()) return is_free.error();
  auto lock = LockForWriting(directory);
  if (!lock.ok()) return lock.error();
  std::unique_ptr<RecordingWriter> writer(
      new RecordingWriter(directory, options, *std::move(lock)));
  auto started = exists ? writer->Resume() : writer->Start();
  if (!started.ok()) {
    writer->closing_ = true;  // there is nothing to close
    return started.error();
  }
  writer->commit_thread_ = std::thread([raw = writer.get()] { raw->CommitLoop(); });
  return writer;
}

Result<void> RecordingWriter::Start() {
  if (getrandom(uuid_.data(), uuid_.size(), 0) != static_cast<ssize_t>(uuid_.size())) {
    return ErrnoError("no random number for a new recording");
  }
  return StartSegment(1);
}

Result<void> RecordingWriter::StartSegment(std::uint32_t segment) {
  auto created = SegmentWriter::Create(directory_, uuid_, segment, next_number_);
  if (!created.ok()) return created.error();
  segment_ = *std::move(created);
  index_offset_ = 0;
  index_begin_ = segment_->bytes();
  index_first_number_ = next_number_;
  rows_.clear();
  others_.clear();
  for (const Session& session : sessions_) {
    if (auto written = Write(RecordType::kSession, EncodeFields(session), {}, 0); !written.ok()) {
      return written;
    }
  }
  for (const Slot& slot : slots_) {
    if (auto written = Write(RecordType::kSlot, EncodeFields(slot), {}, 0); !written.ok())
      return written;
  }
  return {};
}

Error RecordingWriter::Refused() const {
  return Error{fmt::format("{} takes no more: {}{}{}", directory_, ToText(status_.stopped),
                           status_.error.empty() ? "" : ": ", status_.error)};
}

// Ends the recording as well as the disk still allows.
void RecordingWriter::Finish(StopReason reason, std::string error) {
  if (status_.stopped != StopReason::kNone) return;
  status_.error = std::move(error);
  auto ended = WriteEnd(RecordType::kClose, reason);
  status_.stopped = reason;
  if (!ended.ok() && status_.error.empty()) status_.error = ended.error().message;
  unsynced_.push_back(segment_);
}

void RecordingWriter::FinishAfter(const Result<void>& failed) {
  Finish(segment_->error_number() == ENOSPC ? StopReason::kDiskFull : StopReason::kWriteError,
         failed.error().message);
}

// Makes room for a record of so many bytes, in this segment or the next, and for the end after it.
Result<void> RecordingWriter::MakeRoom(std::uint64_t bytes) {
  const std::uint64_t index_bytes = rows_.size() * sizeof(IndexRow) + others_.size() * 10 + 4096;
  const std::uint64_t total = bytes_before_ + segment_->bytes() + bytes;
  if (options_.max_bytes != 0 &&
      total + index_bytes + layout::kEndRecordBytes > options_.max_bytes) {
    Finish(StopReason::kMaxSize,
           fmt::format("{} were allowed: --max-size, or --max-disk of the daemon",
                       numerics::FormatBytes(options_.max_bytes)));
    return Refused();
  }
  if (segment_->bytes() + bytes > options_.roll_bytes &&
      segment_->bytes() > index_begin_ + layout::kFileHeaderBytes) {
    if (auto rolled = Roll(); !rolled.ok()) {
      FinishAfter(rolled);
      return Refused();
    }
  }
  const std::uint64_t free_before = segment_->reserved_end();
  auto reserved = segment_->Reserve(bytes + index_bytes);
  if (reserved.ok() && segment_->reserved_end() == free_before) return {};
  const Result<void> is_free = reserved.ok() ? CheckFree(directory_, options_) : reserved;
  if (is_free.ok()) return {};
  const bool no_space = reserved.ok() || segment_->error_number() == ENOSPC;
  Finish(no_space ? StopReason::kDiskFull : StopReason::kWriteError, is_free.error().message);
  return Refused();
}

// One record, at once.
Result<void> RecordingWriter::Write(RecordType type, const std::string& meta,
                                    std::span<const std::byte> payload,
                                    std::uint64_t payload_hash) {
  const std::uint64_t offset = segment_->bytes();
  auto appended = segment_->Append(type, next_number_, meta, payload, payload_hash);
  if (!appended.ok()) {
    ForgetUnwritten();
    return appended;
  }
  ++next_number_;
  status_.records = next_number_ - 1;
  if (IsOther(type)) others_.push_back(offset);
  uncommitted_bytes_ += segment_->bytes() - offset;
  return options_.gather ? Result<void>() : FlushSegment();
}

Result<void> RecordingWriter::WriteMeta(RecordType type, const std::string& meta) {
  if (auto room = MakeRoom(meta.size()); !room.ok()) return room;
  auto written = Write(type, meta, {}, 0);
  if (!written.ok()) FinishAfter(written);
  return written;
}

Result<void> RecordingWriter::WriteIndex() {
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
  if (written.ok()) written = FlushSegment();
  if (!written.ok()) return written;
  index_offset_ = offset;
  WriteIndexNote(lock_, {segment_->segment(), offset});
  index_first_number_ = next_number_;
  index_begin_ = segment_->bytes();
  rows_.clear();
  others_.clear();
  return {};
}

Result<void> RecordingWriter::WriteEnd(RecordType type, StopReason reason) {
  if (auto written = WriteIndex(); !written.ok()) return written;
  End end;
  end.index_offset = index_offset_;
  end.reason = reason;
  end.snapshots = status_.snapshots;
  end.lost = status_.lost;
  end.timestamp_ns = RealtimeNs();
  constexpr std::size_t kMetaBytes = layout::kEndRecordBytes - sizeof(layout::RecordHeader);
  end.padding.assign(kMetaBytes - EncodeFields(end).size() - 3,
                     '\0');  // two bytes of tag and length
  while (EncodeFields(end).size() < kMetaBytes) end.padding.push_back('\0');
  if (auto written = Write(type, EncodeFields(end), {}, 0); !written.ok()) return written;
  if (auto flushed = FlushSegment(); !flushed.ok()) return flushed;
  return segment_->Trim();
}

Result<void> RecordingWriter::Roll() {
  if (auto ended = WriteEnd(RecordType::kRoll, StopReason::kNone); !ended.ok()) return ended;
  bytes_before_ += segment_->bytes();
  unsynced_.push_back(segment_);
  return StartSegment(segment_->segment() + 1);
}

Result<std::uint32_t> RecordingWriter::AddSession(Session session) {
  const std::scoped_lock lock(mutex_);
  for (const Session& known : sessions_) {
    if (known.uuid == session.uuid) return known.id;
  }
  if (status_.stopped != StopReason::kNone) return Refused();
  session.id = static_cast<std::uint32_t>(sessions_.size());
  if (auto written = WriteMeta(RecordType::kSession, EncodeFields(session)); !written.ok())
    return written.error();
  sessions_.push_back(std::move(session));
  return sessions_.back().id;
}

Result<std::uint32_t> RecordingWriter::AddSlot(Slot slot) {
  const std::scoped_lock lock(mutex_);
  const SlotKey key(slot.session, slot.index, slot.generation);
  if (const auto known = slot_ids_.find(key); known != slot_ids_.end()) return known->second;
  if (status_.stopped != StopReason::kNone) return Refused();
  slot.id = static_cast<std::uint32_t>(slots_.size());
  if (auto written = WriteMeta(RecordType::kSlot, EncodeFields(slot)); !written.ok()) {
    return written.error();
  }
  slot_ids_.emplace(key, slot.id);
  last_.push_back({slot.from_ordinal, 0});
  slots_.push_back(std::move(slot));
  return slots_.back().id;
}

RecordingWriter::Position RecordingWriter::last(std::uint32_t slot) const {
  const std::scoped_lock lock(mutex_);
  return slot < last_.size() ? last_[slot] : Position();
}

void RecordingWriter::Advance(const Loss& loss) {
  Position& last = last_[loss.slot];
  last.ordinal = std::max(last.ordinal, loss.last_ordinal);
  if (loss.before_replay != 0) last.replay = std::max(last.replay, loss.before_replay - 1);
}

Result<void> RecordingWriter::Append(Snapshot snapshot, std::span<const std::byte> payload) {
  if (snapshot.payload_hash == 0 && !payload.empty()) snapshot.payload_hash = Xxh3(payload);
  const std::uint64_t hash = payload.empty() ? 0 : snapshot.payload_hash;
  const std::string meta = EncodeFields(snapshot);
  {
    const std::scoped_lock lock(mutex_);
    if (snapshot.slot >= slots_.size()) return Error{"Append() before AddSlot()"};
    if (payload.size() != (snapshot.stats_only ? 0 : slots_[snapshot.slot].payload_bytes)) {
      return Error{fmt::format("a snapshot of {} bytes for probe '{}', whose tensors have {}",
                               payload.size(), slots_[snapshot.slot].probe,
                               slots_[snapshot.slot].payload_bytes)};
    }
    if (snapshot.ordinal <= last_[snapshot.slot].ordinal) return {};
    if (status_.stopped != StopReason::kNone) {
      ++status_.refused;
      return Refused();
    }
    const std::uint64_t bytes = meta.size() + payload.size() + 2 * layout::kLargePayloadAlignment;
    if (auto room = MakeRoom(bytes); !room.ok()) {
      ++status_.refused;
      return room;
    }
    const std::uint64_t offset = segment_->bytes();
    if (auto written = Write(RecordType::kSnapshot, meta, payload, hash); !written.ok()) {
      ++status_.refused;
      FinishAfter(written);
      return written;
    }
    ++status_.snapshots;
    last_[snapshot.slot] = {snapshot.ordinal, snapshot.replay};
    rows_.push_back({snapshot.slot, snapshot.iteration, snapshot.ordinal, snapshot.replay, offset});
    if (rows_.size() >= kIndexRows || segment_->bytes() - index_begin_ >= options_.index_bytes) {
      if (auto indexed = WriteIndex(); !indexed.ok()) {
        FinishAfter(indexed);
        return indexed;
      }
    }
    if (options_.durability == Durability::kInterval &&
        uncommitted_bytes_ >= options_.commit_bytes) {
      commit_due_.notify_all();
    }
  }
  return options_.durability == Durability::kEach ? Commit() : Result<void>();
}

Result<void> RecordingWriter::AddLoss(const Loss& loss) {
  const std::scoped_lock lock(mutex_);
  if (loss.slot >= slots_.size()) return Error{"AddLoss() before AddSlot()"};
  if (loss.last_ordinal != 0 && loss.last_ordinal <= last_[loss.slot].ordinal) return {};
  if (status_.stopped != StopReason::kNone) return Refused();
  if (auto written = WriteMeta(RecordType::kLoss, EncodeFields(loss)); !written.ok())
    return written;
  status_.lost += loss.count;
  Advance(loss);
  return {};
}

Result<void> RecordingWriter::AddMark(const Mark& mark) {
  const std::scoped_lock lock(mutex_);
  if (status_.stopped != StopReason::kNone) return Refused();
  return WriteMeta(RecordType::kMark, EncodeFields(mark));
}

WriterStatus RecordingWriter::status() const {
  const std::scoped_lock lock(mutex_);
  WriterStatus status = status_;
  status.bytes = bytes_before_ + segment_->bytes();
  return status;
}

// --- what is handed to the system, and what the disk has ----------------------------------------

Result<void> RecordingWriter::FlushSegment() {
  auto flushed = segment_->Flush();
  if (!flushed.ok()) ForgetUnwritten();
  return flushed;
}

// After a failure: counts records that were accepted but not written.
void RecordingWriter::ForgetUnwritten() {
  const std::uint64_t end = segment_->bytes();
  const std::size_t snapshots =
      std::erase_if(rows_, [&](const IndexRow& row) { return row.offset >= end; });
  std::erase_if(others_, [&](std::uint64_t offset) { return offset >= end; });
  status_.snapshots -= snapshots;
  status_.refused += snapshots;
  next_number_ = segment_->unwritten_number();
  status_.records = next_number_ - 1;
}

Result<void> RecordingWriter::Flush() {
  const std::scoped_lock lock(mutex_);
  if (status_.stopped != StopReason::kNone) return {};
  auto flushed = FlushSegment();
  if (!flushed.ok()) FinishAfter(flushed);
  return flushed;
}

// Waits for the disk without the lock, so that others can go on writing.
Result<void> RecordingWriter::Commit() {
  const std::scoped_lock commit_lock(commit_mutex_);
  std::vector<std::shared_ptr<SegmentWriter>> segments;
  struct {
    std::uint64_t records = 0;
    std::uint64_t snapshots = 0;
  } target;
  {
    const std::scoped_lock lock(mutex_);
    if (sync_failed_) return Refused();
    if (status_.records == status_.durable_records) return {};
    if (auto flushed = FlushSegment(); !flushed.ok()) {
      FinishAfter(flushed);
      return flushed;
    }
    segments = std::exchange(unsynced_, {});
    if (segments.empty() || segments.back() != segment_) segments.push_back(segment_);
    target = {status_.records, status_.snapshots};
    uncommitted_bytes_ = 0;
  }
  for (const auto& segment : segments) {
    if (auto synced = segment->Sync(); !synced.ok()) {
      const std::scoped_lock lock(mutex_);
      sync_failed_ = true;
      Finish(StopReason::kWriteError, synced.error().message);
      return synced;
    }
  }
  const std::scoped_lock lock(mutex_);
  status_.durable_records = target.records;
  status_.durable_snapshots = target.snapshots;
  if (status_.stopped != StopReason::kNone) return {};
  const bool nothing_new = status_.records == target.records;
  auto written =
      WriteMeta(RecordType::kCommit, EncodeFields(recording::Commit{target.records, RealtimeNs()}));
  // A commit record alone needs no further commit.
  if (nothing_new) status_.durable_records = status_.records;
  return written;
}

void RecordingWriter::CommitLoop() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    commit_due_.wait_for(lock, options_.commit_interval);
    if (closing_) return;
    if (options_.durability != Durability::kInterval) continue;
    lock.unlock();
    // A failure stops the recording and is in its status.
    [[maybe_unused]] const auto committed = Commit();
    lock.lock();
  }
}

Result<void> RecordingWriter::Close(StopReason reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(closing_, true)) return {};
    Finish(reason, "");
  }
  commit_due_.notify_all();
  if (commit_thread_.joinable()) commit_thread_.join();
  if (options_.durability == Durability::kNone) return {};
  return Commit();
}

// --- goes on with a recording that another writer began -----------------------------------------

// Reads what is there, ends its last segment after the last whole record, and begins a new segment.
Result<void> RecordingWriter::Resume() {
  auto opened = RecordingReader::Open(directory_);
  if (!opened.ok()) return opened.error();
  const RecordingReader& reader = **opened;
  if (options_.only_unfinished && reader.ended()) {
    return Error{directory_ +
                 " is a finished recording, which cannot be continued. Choose another "
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

// Collects the rows of an index over the whole last segment.
void RecordingWriter::CollectIndex(const RecordingReader& reader, const SegmentFile& file) {
  const auto place = static_cast<std::uint32_t>(reader.segment_count() - 1);
  for (const Slot& slot : slots_) {
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

}  // namespace cgdebug::recording
