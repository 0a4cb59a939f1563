#include "daemon/core/recording/recording_writer.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "daemon/core/base/realtime.h"
#include "daemon/core/recording/checksum.h"
#include "daemon/core/recording/recording_files.h"

namespace cgdebug::recording {
namespace {

using layout::IndexRow;
using layout::RecordType;

constexpr std::size_t kIndexRows = 16384;  // an index at the latest after so many

// Fails: less of the disk is free than must stay free.
Result<void> CheckFree(const std::string& directory, const WriterOptions& options) {
  struct statvfs status = {};
  if (statvfs(directory.c_str(), &status) != 0) return {};
  const std::uint64_t part = status.f_blocks / 100 * status.f_frsize * options.min_free_percent;
  const std::uint64_t kept = std::max(options.min_free_bytes, part);
  const std::uint64_t free = std::uint64_t{status.f_bavail} * status.f_frsize;
  if (free >= kept) return {};
  return Error{fmt::format(
      "{} MiB are free on the disk of {}, and {} MiB are to stay free. Type another directory, or "
      "leave less free: --min-free-disk 0 of cgdebug-cli run and record start, or "
      "CGDEBUG_MIN_FREE_DISK=0 where the daemon starts",
      free >> 20, directory, kept >> 20)};
}

// A file that no recording has, or "".
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

std::optional<Durability> ParseDurability(std::string_view text) {
  if (text == "none") return Durability::kNone;
  if (text == "interval") return Durability::kInterval;
  if (text == "each") return Durability::kEach;
  return std::nullopt;
}

RecordingWriter::RecordingWriter(std::string directory, const WriterOptions& options, UniqueFd lock)
    : directory_(std::move(directory)), options_(options), lock_(std::move(lock)) {}

RecordingWriter::~RecordingWriter() {
  // Errors are in status(), which can no longer be asked for.
  [[maybe_unused]] const auto closed = Close(StopReason::kDaemonStopped);
}

Result<std::unique_ptr<RecordingWriter>> RecordingWriter::Open(const std::string& directory,
                                                               const WriterOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Error{fmt::format("cannot make {}: {}", directory, error.message())};
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
    if (auto written = Write(RecordType::kSession, Encode(session), {}, 0); !written.ok()) {
      return written;
    }
  }
  for (const Slot& slot : slots_) {
    if (auto written = Write(RecordType::kSlot, Encode(slot), {}, 0); !written.ok()) return written;
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
    Finish(StopReason::kMaxSize, fmt::format("{} bytes were allowed", options_.max_bytes));
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
  auto written = Write(RecordType::kIndex, Encode(index), rows, rows.empty() ? 0 : Xxh3(rows));
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
  end.padding.assign(kMetaBytes - Encode(end).size() - 3, '\0');  // two bytes of tag and length
  while (Encode(end).size() < kMetaBytes) end.padding.push_back('\0');
  if (auto written = Write(type, Encode(end), {}, 0); !written.ok()) return written;
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
  if (auto written = WriteMeta(RecordType::kSession, Encode(session)); !written.ok())
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
  if (auto written = WriteMeta(RecordType::kSlot, Encode(slot)); !written.ok()) {
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
  const std::string meta = Encode(snapshot);
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
    rows_.push_back({snapshot.slot, 0, snapshot.ordinal, snapshot.replay, offset});
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
  if (auto written = WriteMeta(RecordType::kLoss, Encode(loss)); !written.ok()) return written;
  status_.lost += loss.count;
  Advance(loss);
  return {};
}

Result<void> RecordingWriter::AddMark(const Mark& mark) {
  const std::scoped_lock lock(mutex_);
  if (status_.stopped != StopReason::kNone) return Refused();
  return WriteMeta(RecordType::kMark, Encode(mark));
}

WriterStatus RecordingWriter::status() const {
  const std::scoped_lock lock(mutex_);
  WriterStatus status = status_;
  status.bytes = bytes_before_ + segment_->bytes();
  return status;
}

}  // namespace cgdebug::recording
