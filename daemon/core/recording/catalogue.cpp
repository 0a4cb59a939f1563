#include "daemon/core/recording/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "daemon/core/recording/catalogue_graphs.h"
#include "daemon/core/recording/catalogue_schema.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/recording_files.h"
#include "daemon/core/recording/remote_files.h"
#include "daemon/core/recording/segment_walk.h"
#include "daemon/core/recording/snapshot_row.h"
#include "daemon/core/recording/sqlite_statement.h"

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
    std::uint64_t number = 0;  // of the last record
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
               "insert or ignore into probe values (?,?,?,?,?,?,?,?,?,?,?,?,?,null,?,?,?,?)"),
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
    return probe_.Run(s->id, s->session, s->probe, s->site, s->device, layout::DtypeName(s->dtype),
                      shape, s->payload_bytes, s->graph_id, s->invocation, s->order, s->every,
                      s->shard,
                      s->graph_label.empty() ? std::nullopt : std::optional(s->graph_label),
                      s->op.empty() ? std::nullopt : std::optional(s->op), s->in_body, s->part);
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
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix, ignored);
}

// Null if the file is not ours; then it may be replaced, unless another process is writing it
// (`*busy`): SQLite would pair the new database with the old write-ahead log.
Database OpenDatabase(const std::string& path, bool* busy) {
  sqlite3* raw = nullptr;
  const int opened =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  Database database(raw);
  if (opened != SQLITE_OK) return nullptr;
  sqlite3_busy_timeout(raw, kBusyTimeoutMs);
  if (!Execute(raw, "pragma journal_mode = wal; pragma synchronous = normal; begin immediate")) {
    *busy = sqlite3_errcode(raw) == SQLITE_BUSY;
    return nullptr;
  }
  Statement version(raw, "pragma user_version");
  if (!version.Run() || !version.has_row()) return nullptr;
  if (version.Integer(0) == kCatalogueVersion) return database;
  Statement tables(raw, "select count(*) from sqlite_master");
  if (version.Integer(0) != 0 || !tables.Run() || tables.Integer(0) != 0) return nullptr;
  const std::string set_version = fmt::format("pragma user_version = {}", kCatalogueVersion);
  if (!Execute(raw, CatalogueSchema().c_str()) || !Execute(raw, set_version.c_str()))
    return nullptr;
  return database;
}

std::optional<Progress> ReadProgress(sqlite3* database) {
  Progress progress;
  Statement select(database, "select recording, segment, next_offset, number from progress");
  bool done = select.Run();
  for (; done && select.has_row(); done = select.Next()) {
    progress.recording = select.Text(0);
    progress.segments[static_cast<std::uint32_t>(select.Integer(1))] = {
        static_cast<std::uint64_t>(select.Integer(2)),
        static_cast<std::uint64_t>(select.Integer(3))};
  }
  return done ? std::optional(progress) : std::nullopt;
}

bool WriteProgress(sqlite3* database, const Progress& progress) {
  Statement clear(database, "delete from progress");
  Statement insert(database, "insert into progress values (?,?,?,?)");
  bool done = clear.Run();
  for (const auto& [segment, place] : progress.segments) {
    done = done && insert.Run(progress.recording, segment, place.offset, place.number);
  }
  return done;
}

// Takes in the whole records of a file from *place on.
bool TakeIn(const SegmentFile& file, const SegmentWalk::Options& options, Rows* rows,
            Progress::Place* place, std::uint64_t* taken) {
  SegmentWalk walk(file, place->offset, options);
  while (const Record* record = walk.Next()) {
    if (!rows->Add(*record, file.header().segment)) return false;
    place->number = record->header.number;
    ++*taken;
  }
  place->offset = walk.offset();
  return true;
}

enum class Outcome { kDone, kAnew, kFailed };

Outcome Update(const std::string& directory, sqlite3* database, std::uint64_t* taken,
               std::string* error) {
  auto progress = ReadProgress(database);
  if (!progress) return Outcome::kAnew;
  Rows rows(database);
  const auto paths = ListSegments(directory);
  if (!paths.ok()) {
    *error = paths.error().message;
    return Outcome::kFailed;
  }
  std::string recording;
  std::set<std::uint32_t> present;
  for (const std::string& path : *paths) {
    const auto file = SegmentFile::Open(path);
    if (!file.ok()) {
      *error = file.error().message;
      continue;
    }
    if (recording.empty()) recording = (*file)->uuid();
    if (recording != (*file)->uuid()) continue;  // a stray file of another recording
    if (progress->recording.empty()) progress->recording = recording;
    if (progress->recording != recording) return Outcome::kAnew;
    present.insert((*file)->header().segment);
    Progress::Place& place = progress->segments[(*file)->header().segment];
    // A segment that is shorter than what was taken in was cut off, and some rows may be gone. The
    // zeros behind a last record may never have been written.
    if (place.offset > layout::RoundUp((*file)->bytes(), layout::kRecordAlignment)) {
      return Outcome::kAnew;
    }
    const bool is_last = path == paths->back();
    const SegmentWalk::Options options = {.is_last = is_last,
                                          .is_live = is_last && IsBeingWritten(directory)};
    if (!TakeIn(**file, options, &rows, &place, taken)) return Outcome::kFailed;
  }
  if (recording.empty()) {
    if (error->empty()) *error = directory + " is not a recording: it holds no segment-000001.cgd";
    return Outcome::kFailed;
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

std::string CataloguePath(const std::string& directory) { return directory + "/catalogue.sqlite"; }

namespace {

Result<void> CheckRecording(const std::string& directory) {
  if (IsUrl(directory)) return Error{"no catalogue can be made in " + directory};
  const auto paths = ListSegments(directory);
  if (!paths.ok()) return paths.error();
  if (!paths->empty()) return {};
  return Error{directory + " is not a recording: it holds no segment-000001.cgd"};
}

}  // namespace

Result<std::uint64_t> UpdateCatalogue(const std::string& directory) {
  const std::string path = CataloguePath(directory);
  if (auto is_one = CheckRecording(directory); !is_one.ok()) return is_one.error();
  // Once with the existing file, once with a new one.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (attempt > 0) RemoveFiles(path);
    bool busy = false;
    const Database database = OpenDatabase(path, &busy);
    if (busy) return Error{fmt::format("another process is writing {}; try again", path)};
    if (database == nullptr) continue;
    std::uint64_t taken = 0;
    std::string error;
    const Outcome outcome = Update(directory, database.get(), &taken, &error);
    if (outcome == Outcome::kAnew) continue;
    if (outcome == Outcome::kDone && Execute(database.get(), "commit")) return taken;
    if (error.empty()) error = sqlite3_errmsg(database.get());
    if (attempt == 1) return Error{fmt::format("cannot write {}: {}", path, error)};
  }
  return Error{fmt::format("cannot make {}: no SQLite database can be written there", path)};
}

Result<std::uint64_t> RebuildCatalogue(const std::string& directory) {
  if (auto is_one = CheckRecording(directory); !is_one.ok()) return is_one.error();
  RemoveFiles(CataloguePath(directory));
  return UpdateCatalogue(directory);
}

}  // namespace cgdebug::recording
