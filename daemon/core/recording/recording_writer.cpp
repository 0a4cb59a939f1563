#include "daemon/core/recording/recording_writer.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "daemon/core/base/realtime.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::recording {

using layout::RecordType;

namespace {

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

// Whether there is a recording in it. Makes it if it is not there. Fails: it holds something else.
Result<bool> FindRecording(const std::string& directory) {
  if (auto made = MakeDirectory(directory); !made.ok()) return made.error();
  const auto segments = ListSegments(directory);
  if (!segments.ok()) return segments.error();
  if (!segments->empty()) return true;
  const Result<std::string> other = FindOtherFile(directory);
  if (!other.ok()) return other.error();
  if (other->empty()) return false;
  return Error{
      fmt::format("{} holds other files ({}); choose a directory of its own", directory, *other)};
}

WrittenSlots WrittenIn(const RecordingReader& reader) {
  WrittenSlots written;
  for (const Session& session : reader.sessions()) written.Add(session);
  for (const Slot& slot : reader.slots()) {
    written.Add(slot);
    const auto last = reader.Last(slot.id);
    if (last) written.SetLast(slot.id, {last->ordinal, last->replay});
  }
  for (const Loss& loss : reader.losses()) written.Advance(loss);
  return written;
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
    : directory_(std::move(directory)),
      options_(options),
      lock_(std::move(lock)),
      log_(directory_, &lock_, &written_,
           {.roll_bytes = options.roll_bytes,
            .index_bytes = options.index_bytes,
            .gather = options.gather}) {}

RecordingWriter::~RecordingWriter() {
  // Errors go to status(), which nobody can ask any more.
  [[maybe_unused]] const auto closed = Close(StopReason::kDaemonStopped);
}

Result<std::unique_ptr<RecordingWriter>> RecordingWriter::Open(const std::string& directory,
                                                               const WriterOptions& options) {
  const Result<bool> exists = FindRecording(directory);
  if (!exists.ok()) return exists.error();
  // Checked before anything is written: a recording that ends with its first snapshot is useless.
  if (auto is_free = CheckFree(directory, options); !is_free.ok()) return is_free.error();
  auto lock = LockForWriting(directory);
  if (!lock.ok()) return lock.error();
  std::unique_ptr<RecordingWriter> writer(
      new RecordingWriter(directory, options, *std::move(lock)));
  auto started = *exists ? writer->Resume() : writer->log_.Start();
  if (!started.ok()) {
    writer->closed_ = true;  // there is nothing to close
    return started.error();
  }
  if (options.durability == Durability::kInterval) {
    // A failure stops the recording and is in its status.
    writer->commit_timer_.Start(options.commit_interval,
                                [raw = writer.get()] { (void)raw->Commit(); });
  }
  return writer;
}

// Reads what is there, and goes on after it.
Result<void> RecordingWriter::Resume() {
  auto opened = RecordingReader::Open(directory_);
  if (!opened.ok()) return opened.error();
  const RecordingReader& reader = **opened;
  if (options_.only_unfinished && reader.ended()) {
    return Error{directory_ +
                 " is a finished recording, which cannot be continued. Choose another "
                 "directory, or remove it: -f of cgdebug-cli run and record start, or "
                 "cgdebug-cli rm -f '" +
                 directory_ + "'"};
  }
  written_ = WrittenIn(reader);
  for (const Loss& loss : reader.losses()) log_.CountLost(loss.count);
  durable_snapshots_ = reader.snapshot_count();
  durable_records_ = reader.last_number();
  return log_.Resume(reader);
}

Error RecordingWriter::Refused() const {
  return Error{fmt::format("{} takes no more: {}{}{}", directory_, ToText(stopped_),
                           error_.empty() ? "" : ": ", error_)};
}

// Ends the recording as well as the disk still allows.
void RecordingWriter::Finish(StopReason reason, std::string error) {
  if (stopped_ != StopReason::kNone) return;
  error_ = std::move(error);
  auto ended = log_.Close(reason);
  stopped_ = reason;
  if (!ended.ok() && error_.empty()) error_ = ended.error().message;
}

Result<void> RecordingWriter::OrFinish(Result<void> done) {
  if (!done.ok()) {
    Finish(log_.disk_is_full() ? StopReason::kDiskFull : StopReason::kWriteError,
           done.error().message);
  }
  return done;
}

// Makes room for a record of so many bytes, in this segment or the next, and for the end after it.
Result<void> RecordingWriter::MakeRoom(std::uint64_t bytes) {
  const std::uint64_t end_bytes = log_.EndBytes();
  if (options_.max_bytes != 0 &&
      log_.bytes() + bytes + end_bytes + layout::kEndRecordBytes > options_.max_bytes) {
    Finish(StopReason::kMaxSize,
           fmt::format("{} were allowed: --max-size, or --max-disk of the daemon",
                       numerics::FormatBytes(options_.max_bytes)));
    return Refused();
  }
  if (!OrFinish(log_.RollFor(bytes)).ok()) return Refused();
  bool is_new = false;
  auto reserved = log_.Reserve(bytes + end_bytes, &is_new);
  if (reserved.ok() && !is_new) return {};
  const Result<void> is_free = reserved.ok() ? CheckFree(directory_, options_) : reserved;
  if (is_free.ok()) return {};
  const bool no_space = reserved.ok() || log_.disk_is_full();
  Finish(no_space ? StopReason::kDiskFull : StopReason::kWriteError, is_free.error().message);
  return Refused();
}

Result<void> RecordingWriter::WriteMeta(RecordType type, const std::string& meta) {
  if (auto room = MakeRoom(meta.size()); !room.ok()) return room;
  return OrFinish(log_.Append(type, meta));
}

template <typename Entry>
Result<std::uint32_t> RecordingWriter::Add(Entry entry, RecordType type,
                                           const std::vector<Entry>& all) {
  const std::scoped_lock lock(mutex_);
  if (const auto known = written_.Find(entry)) return *known;
  if (stopped_ != StopReason::kNone) return Refused();
  entry.id = static_cast<std::uint32_t>(all.size());
  const Result<void> written = WriteMeta(type, EncodeFields(entry));
  if (!written.ok()) return written.error();
  written_.Add(std::move(entry));
  return all.back().id;
}

Result<std::uint32_t> RecordingWriter::AddSession(Session session) {
  return Add(std::move(session), RecordType::kSession, written_.sessions());
}

Result<std::uint32_t> RecordingWriter::AddSlot(Slot slot) {
  return Add(std::move(slot), RecordType::kSlot, written_.slots());
}

RecordingWriter::Position RecordingWriter::last(std::uint32_t slot) const {
  const std::scoped_lock lock(mutex_);
  return written_.last(slot);
}

Result<void> RecordingWriter::Append(Snapshot snapshot, std::span<const std::byte> payload) {
  if (snapshot.payload_hash == 0 && !payload.empty()) snapshot.payload_hash = Xxh3(payload);
  const std::uint64_t hash = payload.empty() ? 0 : snapshot.payload_hash;
  const std::string meta = EncodeFields(snapshot);
  {
    const std::scoped_lock lock(mutex_);
    if (snapshot.slot >= written_.slots().size()) return Error{"Append() before AddSlot()"};
    const Slot& slot = written_.slots()[snapshot.slot];
    if (payload.size() != (snapshot.stats_only ? 0 : slot.payload_bytes)) {
      return Error{fmt::format("a snapshot of {} bytes for probe '{}', whose tensors have {}",
                               payload.size(), slot.probe, slot.payload_bytes)};
    }
    if (snapshot.ordinal <= written_.last(snapshot.slot).ordinal) return {};
    if (stopped_ != StopReason::kNone) {
      ++refused_;
      return Refused();
    }
    const std::uint64_t bytes = meta.size() + payload.size() + 2 * layout::kLargePayloadAlignment;
    if (auto room = MakeRoom(bytes); !room.ok()) {
      ++refused_;
      return room;
    }
    if (auto written = OrFinish(log_.Append(snapshot, meta, payload, hash)); !written.ok()) {
      ++refused_;
      return written;
    }
    written_.SetLast(snapshot.slot, {snapshot.ordinal, snapshot.replay});
    if (log_.IndexIsDue()) {
      if (auto indexed = OrFinish(log_.WriteIndex()); !indexed.ok()) return indexed;
    }
    if (options_.durability == Durability::kInterval &&
        log_.unsynced_bytes() >= options_.commit_bytes) {
      commit_timer_.CallSoon();
    }
  }
  return options_.durability == Durability::kEach ? Commit() : Result<void>();
}

Result<void> RecordingWriter::AddLoss(const Loss& loss) {
  const std::scoped_lock lock(mutex_);
  if (loss.slot >= written_.slots().size()) return Error{"AddLoss() before AddSlot()"};
  if (loss.last_ordinal != 0 && loss.last_ordinal <= written_.last(loss.slot).ordinal) return {};
  if (stopped_ != StopReason::kNone) return Refused();
  if (auto written = WriteMeta(RecordType::kLoss, EncodeFields(loss)); !written.ok())
    return written;
  log_.CountLost(loss.count);
  written_.Advance(loss);
  return {};
}

Result<void> RecordingWriter::AddMark(const Mark& mark) {
  const std::scoped_lock lock(mutex_);
  if (stopped_ != StopReason::kNone) return Refused();
  return WriteMeta(RecordType::kMark, EncodeFields(mark));
}

WriterStatus RecordingWriter::status() const {
  const std::scoped_lock lock(mutex_);
  return {.bytes = log_.bytes(),
          .records = log_.records(),
          .snapshots = log_.snapshots(),
          .durable_snapshots = durable_snapshots_,
          .durable_records = durable_records_,
          .lost = log_.lost(),
          .refused = refused_ + log_.forgotten(),
          .stopped = stopped_,
          .error = error_};
}

// --- what is handed to the system, and what the disk has ----------------------------------------

Result<void> RecordingWriter::Flush() {
  const std::scoped_lock lock(mutex_);
  if (stopped_ != StopReason::kNone) return {};
  return OrFinish(log_.Flush());
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
    if (log_.records() == durable_records_) return {};
    if (auto flushed = OrFinish(log_.Flush()); !flushed.ok()) return flushed;
    segments = log_.TakeUnsynced();
    target = {log_.records(), log_.snapshots()};
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
  durable_records_ = target.records;
  durable_snapshots_ = target.snapshots;
  if (stopped_ != StopReason::kNone) return {};
  const bool nothing_new = log_.records() == target.records;
  auto written =
      WriteMeta(RecordType::kCommit, EncodeFields(recording::Commit{target.records, RealtimeNs()}));
  // A commit record alone needs no further commit.
  if (nothing_new) durable_records_ = log_.records();
  return written;
}

Result<void> RecordingWriter::Close(StopReason reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(closed_, true)) return {};
    Finish(reason, "");
  }
  commit_timer_.Stop();
  if (options_.durability == Durability::kNone) return {};
  return Commit();
}

}  // namespace cgdebug::recording
