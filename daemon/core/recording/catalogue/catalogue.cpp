#include "daemon/core/recording/catalogue/catalogue.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "daemon/core/base/unique_fd.h"
#include "daemon/core/recording/catalogue/catalogue_graphs.h"
#include "daemon/core/recording/catalogue/catalogue_schema.h"
#include "daemon/core/recording/catalogue/catalogue_seal.h"
#include "daemon/core/recording/catalogue/snapshot_row.h"
#include "daemon/core/recording/catalogue/sqlite_statement.h"
#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/files/remote_files.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/segments/segment_walk.h"

namespace cgdebug::recording {
namespace {

using layout::RecordType;

constexpr int kBusyTimeoutMs = 10'000;

// How far each segment is taken in.
//
// Why per segment: one that cannot be read for a while does not delay later ones, and its rows
// follow when it can be read.
struct Progress {
  struct Place {
    std::uint64_t offset = layout::kFileHeaderBytes;
    // Of the last record that was taken in; a segment that has another one there is not the one
    // whose rows these are.
    std::uint64_t number = 0;
    std::uint64_t last_offset = 0;  // 0: none was
    std::uint32_t last_crc32c = 0;
  };
  std::string recording;
  std::map<std::uint32_t, Place> segments;  // by number
};

std::optional<std::int64_t> OrNull(std::int64_t value, std::int64_t nothing) {
  if (value == nothing) return std::nullopt;
  return value;
}

// The rows of records.
class Rows {
 public:
  explicit Rows(sqlite3* database)
      : run_(database,
             "insert or ignore into run (run_id, restart_count, command, world_size) "
             "values (?,?,?,?)"),
        session_(database,
                 "insert or ignore into session select ?, run.id, ?, ?, ?, ?, ?, ?, ? from run "
                 "where run_id = ? and restart_count = ? and command = ?"),
        probe_(database,
               "insert or ignore into probe values (?,?,?,?,?,?,?,?,?,?,?,?,?,null,?,?,?,?,?,?)"),
        snapshot_(database),
        loss_(database, "insert or ignore into loss values (?,?,?,?,?,?,?,?,?)"),
        mark_(database, "insert or ignore into mark values (?,?,?,?,?,?,?,?)") {}

  bool has_new_slots() const { return has_new_slots_; }

  bool Add(const Record& record, std::uint32_t segment) {
    switch (record.type()) {
      case RecordType::kSession:
        return AddSession(DecodeFields<Session>(record.meta));
      case RecordType::kSlot:
        return AddSlot(DecodeFields<Slot>(record.meta));
      case RecordType::kSnapshot:
        return AddSnapshot(record, segment);
      case RecordType::kLoss:
        return AddLoss(record);
      case RecordType::kMark:
        return AddMark(record);
      default:
        return true;
    }
  }

 private:
  bool AddSession(const std::optional<Session>& s) {
    if (!s) return true;
    return run_.Run(s->run_id, s->restart_count, s->command, s->world_size) &&
           session_.Run(s->id, s->uuid, s->label, OrNull(s->rank, -1), s->pid, s->hostname,
                        s->version, s->created_ns, s->run_id, s->restart_count, s->command);
  }
  bool AddSlot(const std::optional<Slot>& s) {
    if (!s) return true;
    has_new_slots_ = true;
    const std::string shape = fmt::format("[{}]", fmt::join(s->shape, ", "));
    return probe_.Run(
        s->id, s->session, s->probe, s->site, s->device, layout::DtypeName(s->dtype), shape,
        s->payload_bytes, s->graph_id, s->invocation, s->order, s->every, s->shard,
        s->graph_label.empty() ? std::nullopt : std::optional(s->graph_label),
        s->op.empty() ? std::nullopt : std::optional(s->op), s->in_body, s->part,
        s->details.empty() ? std::nullopt : std::optional(s->details), OrNull(s->thread, 0u));
  }
  bool AddSnapshot(const Record& record, std::uint32_t segment) {
    const auto s = DecodeFields<Snapshot>(record.meta);
    if (!s) return true;
    const std::uint64_t hash = s->stats_only ? s->payload_hash : record.header.payload_hash;
    SnapshotRow row{.number = record.header.number,
                    .probe = s->slot,
                    .replay = s->replay,
                    .iteration = s->iteration,
                    .ordinal = s->ordinal,
                    .step = OrNull(s->step, -1),
                    .serial = s->serial,
                    .timestamp_ns = s->timestamp_ns,
                    .segment = segment,
                    .offset = record.payload_offset(),
                    .length = record.header.payload_bytes,
                    .unchanged = s->unchanged,
                    .stats = s->stats};
    // Without values the hash may be unknown, and two unknown hashes are not equal.
    if (hash != 0) row.hash = HashText(hash);
    if (s->compared) row.comparison = s->comparison;
    return snapshot_.Run(row);
  }
  bool AddLoss(const Record& record) {
    const auto s = DecodeFields<Loss>(record.meta);
    if (!s) return true;
    return loss_.Run(record.header.number, s->slot, ToText(s->cause), s->count, s->first_ordinal,
                     s->last_ordinal, s->after_replay, s->before_replay, s->timestamp_ns);
  }
  bool AddMark(const Record& record) {
    const auto s = DecodeFields<Mark>(record.meta);
    if (!s) return true;
    return mark_.Run(record.header.number, static_cast<std::uint32_t>(s->kind), s->session,
                     OrNull(s->slot, Mark::kNoSlot), s->replay, OrNull(s->step, -1),
                     s->timestamp_ns, s->text);
  }

  Statement run_;
  Statement session_;
  Statement probe_;
  SnapshotInsert snapshot_;
  Statement loss_;
  Statement mark_;
  bool has_new_slots_ = false;
};

bool Execute(sqlite3* database, const char* sql) {
  return sqlite3_exec(database, sql, nullptr, nullptr, nullptr) == SQLITE_OK;
}

void RemoveFiles(const std::string& path) {
  std::error_code ignored;
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    std::filesystem::remove(path + suffix, ignored);
  }
  std::filesystem::remove(SealPath(path), ignored);
}

// A database file as SQLite sees it. A descriptor of our own would drop the locks of this process
// when it is closed.
std::optional<Seal> SealOf(sqlite3* database, const std::string& recording) {
  sqlite3_file* file = nullptr;
  if (sqlite3_file_control(database, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK ||
      file == nullptr || file->pMethods == nullptr) {
    return std::nullopt;
  }
  sqlite3_int64 bytes = 0;
  if (file->pMethods->xFileSize(file, &bytes) != SQLITE_OK) return std::nullopt;
  return MakeSeal(recording, static_cast<std::uint64_t>(bytes),
                  [&](std::uint64_t offset, std::span<std::byte> buffer) {
                    return file->pMethods->xRead(file, buffer.data(),
                                                 static_cast<int>(buffer.size()),
                                                 static_cast<sqlite3_int64>(offset)) == SQLITE_OK;
                  });
}

// SQLite would make it readable for others.
void MakeFile(const std::string& path) {
  const UniqueFd made(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
}

// The catalogue of the recording, locked until it is closed. Null if the file is not what we wrote;
// then it may be replaced, unless another process is writing it (`*busy`): SQLite would pair the
// new database with the old journal.
Database OpenDatabase(const std::string& path, const std::string& recording, bool* busy) {
  MakeFile(path);
  sqlite3* raw = nullptr;
  const int opened = sqlite3_open_v2(
      path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX | SQLITE_OPEN_NOFOLLOW,
      nullptr);
  Database database(raw);
  if (opened != SQLITE_OK) return nullptr;
  sqlite3_busy_timeout(raw, kBusyTimeoutMs);
  // Exclusive: nobody else writes between the end of a transaction and its seal. What a power
  // failure leaves half written has another seal.
  if (!Execute(raw, "pragma locking_mode = exclusive; pragma synchronous = off; begin immediate")) {
    *busy = sqlite3_errcode(raw) == SQLITE_BUSY;
    return nullptr;
  }
  // Before anything in it is used.
  const std::optional<Seal> seal = SealOf(raw, recording);
  if (!seal) return nullptr;
  const bool is_new = seal->bytes == 0;
  if (!is_new && seal != ReadSeal(path)) return nullptr;
  Statement version(raw, "pragma user_version");
  if (!version.Run() || !version.has_row()) return nullptr;
  if (!is_new) return version.Integer(0) == kCatalogueVersion ? std::move(database) : nullptr;
  const std::string set_version = fmt::format("pragma user_version = {}", kCatalogueVersion);
  if (!Execute(raw, CatalogueSchema().c_str()) || !Execute(raw, set_version.c_str()))
    return nullptr;
  return database;
}

std::optional<Progress> ReadProgress(sqlite3* database) {
  Progress progress;
  Statement select(database,
                   "select recording, segment, next_offset, number, last_offset, last_crc32c "
                   "from progress");
  bool done = select.Run();
  for (; done && select.has_row(); done = select.Next()) {
    progress.recording = select.Text(0);
    progress.segments[static_cast<std::uint32_t>(select.Integer(1))] = {
        static_cast<std::uint64_t>(select.Integer(2)),
        static_cast<std::uint64_t>(select.Integer(3)),
        static_cast<std::uint64_t>(select.Integer(4)),
        static_cast<std::uint32_t>(select.Integer(5))};
  }
  return done ? std::optional(progress) : std::nullopt;
}

bool WriteProgress(sqlite3* database, const Progress& progress) {
  Statement clear(database, "delete from progress");
  Statement insert(database, "insert into progress values (?,?,?,?,?,?)");
  bool done = clear.Run();
  for (const auto& [segment, place] : progress.segments) {
    done = done && insert.Run(progress.recording, segment, place.offset, place.number,
                              place.last_offset, place.last_crc32c);
  }
  return done;
}

// Takes in the whole records of a file from *place on.
bool TakeIn(const SegmentFile& file, const SegmentWalk::Options& options,
            const std::function<void()>& on_snapshot, Rows* rows, Progress::Place* place,
            std::uint64_t* taken) {
  SegmentWalk walk(file, place->offset, options);
  while (const Record* record = walk.Next()) {
    if (!rows->Add(*record, file.header().segment)) return false;
    place->number = record->header.number;
    place->last_offset = record->offset;
    place->last_crc32c = record->header.crc32c;
    ++*taken;
    if (on_snapshot && record->type() == RecordType::kSnapshot) on_snapshot();
  }
  place->offset = walk.offset();
  return true;
}

// Whether the segment is the one of which `place` tells. One that is shorter than what was taken in
// was cut off, and some rows may be gone. The zeros behind a last record may never have been
// written.
bool IsWhatWasTakenIn(const SegmentFile& file, const Progress::Place& place) {
  if (place.offset > layout::RoundUp(file.bytes(), layout::kRecordAlignment)) return false;
  if (place.last_offset == 0) return true;
  Record last;
  const ReadStatus status = file.Read(place.last_offset, &last);
  // What cannot be read any more was right when it was taken in.
  return status != ReadStatus::kRecord || last.header.crc32c == place.last_crc32c;
}

enum class Outcome { kDone, kAnew, kFailed };

Outcome Update(const std::string& directory, const std::string& recording,
               const std::function<void()>& on_snapshot, sqlite3* database, std::uint64_t* taken,
               std::string* error) {
  auto progress = ReadProgress(database);
  if (!progress) return Outcome::kAnew;
  Rows rows(database);
  const auto paths = ListSegments(directory);
  if (!paths.ok()) {
    *error = paths.error().message;
    return Outcome::kFailed;
  }
  if (progress->recording.empty()) progress->recording = recording;
  if (progress->recording != recording) return Outcome::kAnew;
  std::set<std::uint32_t> present;
  std::uint64_t last_number = 0;
  for (const std::string& path : *paths) {
    const auto file = SegmentFile::Open(path);
    if (!file.ok()) {
      *error = file.error().message;
      continue;
    }
    const layout::FileHeader& header = (*file)->header();
    // Stray files, as RecordingReader passes them over.
    if (recording != (*file)->uuid() || !IsNameOfSegment(path, header.segment)) continue;
    if (header.first_number <= last_number) continue;
    present.insert(header.segment);
    Progress::Place& place = progress->segments[header.segment];
    if (!IsWhatWasTakenIn(**file, place)) return Outcome::kAnew;
    const bool is_last = path == paths->back();
    const SegmentWalk::Options options = {.is_last = is_last,
                                          .is_live = is_last && IsBeingWritten(directory)};
    if (!TakeIn(**file, options, on_snapshot, &rows, &place, taken)) return Outcome::kFailed;
    last_number = std::max(last_number, place.number);
  }
  // The rows of a segment that was removed are gone as well.
  const bool all_were_read = error->empty();
  const bool is_gone = std::ranges::any_of(
      progress->segments, [&](const auto& segment) { return present.count(segment.first) == 0; });
  if (all_were_read && is_gone) return Outcome::kAnew;
  if (*taken == 0) return Outcome::kDone;
  if (rows.has_new_slots() && !NameGraphs(database)) return Outcome::kFailed;
  return WriteProgress(database, *progress) ? Outcome::kDone : Outcome::kFailed;
}

}  // namespace

// SQLite refuses a path with a link in it, and the directory may well be behind one.
std::string CataloguePath(const std::string& directory) {
  std::error_code failed;
  const auto path = std::filesystem::canonical(directory, failed);
  return (failed ? directory : path.string()) + "/catalogue.sqlite";
}

namespace {

// Its uuid, by the first segment that can be read.
Result<std::string> UuidOf(const std::string& directory) {
  if (IsUrl(directory)) return Error{"no catalogue can be made in " + directory};
  const auto paths = ListSegments(directory);
  if (!paths.ok()) return paths.error();
  std::string error = directory + " is not a recording: it holds no segment-000001.cgd";
  for (const std::string& path : *paths) {
    const auto file = SegmentFile::Open(path);
    if (file.ok()) return (*file)->uuid();
    error = file.error().message;
  }
  return Error{error};
}

}  // namespace

Result<std::uint64_t> UpdateCatalogue(const std::string& directory,
                                      const std::function<void()>& on_snapshot) {
  const auto recording = UuidOf(directory);
  if (!recording.ok()) return recording.error();
  const std::string path = CataloguePath(directory);
  // Once with the existing file, once with a new one.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (attempt > 0) RemoveFiles(path);
    const Error is_busy{fmt::format("another process is using {}; try again", path)};
    bool busy = false;
    const Database database = OpenDatabase(path, *recording, &busy);
    if (busy) return is_busy;
    if (database == nullptr) continue;
    std::uint64_t taken = 0;
    std::string error;
    const Outcome outcome =
        Update(directory, *recording, on_snapshot, database.get(), &taken, &error);
    if (outcome == Outcome::kAnew) continue;
    if (outcome == Outcome::kDone && Execute(database.get(), "commit")) {
      // Without its seal it is made again the next time.
      if (taken == 0 && ReadSeal(path)) return taken;
      if (const auto seal = SealOf(database.get(), *recording)) {
        [[maybe_unused]] const auto sealed = WriteSeal(path, *seal);
      }
      return taken;
    }
    if (sqlite3_errcode(database.get()) == SQLITE_BUSY) return is_busy;  // by a long query
    if (error.empty()) error = sqlite3_errmsg(database.get());
    if (attempt == 1) return Error{fmt::format("cannot write {}: {}", path, error)};
  }
  return Error{fmt::format("cannot make {}: no SQLite database can be written there", path)};
}

}  // namespace cgdebug::recording
