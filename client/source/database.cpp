#include "client/source/database.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <map>
#include <utility>

#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/catalogue.h"
#include "daemon/core/recording/catalogue_schema.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::source {
namespace {

Error SqlError(sqlite3* database, std::string_view what) {
  return Error{fmt::format("{}: {}", what, sqlite3_errmsg(database))};
}

struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

// Binds values in order.
class Row {
 public:
  explicit Row(sqlite3_stmt* statement) : statement_(statement) {
    sqlite3_clear_bindings(statement);  // what is not bound is NULL
  }
  Row& Add(std::int64_t value) {
    sqlite3_bind_int64(statement_, ++place_, value);
    return *this;
  }
  Row& Add(std::uint64_t value) { return Add(static_cast<std::int64_t>(value)); }
  Row& Add(int value) { return Add(static_cast<std::int64_t>(value)); }
  // NaN is NULL in SQLite.
  Row& Add(double value) {
    sqlite3_bind_double(statement_, ++place_, value);
    return *this;
  }
  Row& Add(const std::string& value) {
    sqlite3_bind_text(statement_, ++place_, value.data(), static_cast<int>(value.size()),
                      SQLITE_TRANSIENT);
    return *this;
  }
  Row& Null() {
    sqlite3_bind_null(statement_, ++place_);
    return *this;
  }
  bool Insert() {
    const bool done = sqlite3_step(statement_) == SQLITE_DONE;
    return sqlite3_reset(statement_) == SQLITE_OK && done;
  }

 private:
  sqlite3_stmt* statement_;
  int place_ = 0;
};

class Filler {
 public:
  Filler(sqlite3* database, Source& source) : database_(database), source_(source) {}

  Result<void> Run() {
    if (Result<void> made = Execute(recording::kCatalogueSchema); !made.ok()) return made;
    if (Result<void> begun = Execute("BEGIN"); !begun.ok()) return begun;
    Result<void> done = AddProbes();
    if (done.ok()) done = AddSnapshots();
    if (done.ok()) done = AddLosses();
    return done.ok() ? Execute("COMMIT") : done;
  }

 private:
  Result<void> Execute(const char* sql) {
    if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
    return SqlError(database_, "cannot make the tables");
  }

  Result<Statement> Insert(const char* table, int values) {
    std::string sql = fmt::format("INSERT INTO {} VALUES (?", table);
    for (int i = 1; i < values; ++i) sql += ",?";
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(database_, (sql + ")").c_str(), -1, &statement, nullptr) != SQLITE_OK) {
      return SqlError(database_, "cannot fill the tables");
    }
    return Statement(statement);
  }

  Error Failed() { return SqlError(database_, "cannot fill the tables"); }

  // Sessions by label: that is all that every source knows of them.
  Result<std::uint64_t> SessionOf(const Slot& slot) {
    const auto [found, is_new] =
        sessions_.try_emplace({slot.session, slot.rank}, sessions_.size() + 1);
    if (!is_new) return found->second;
    const Result<Statement> run = Insert("run", 5);
    const Result<Statement> session = Insert("session", 9);
    if (!run.ok() || !session.ok()) return (run.ok() ? session : run).error();
    Row run_row(run->get());
    run_row.Add(found->second).Add(slot.session).Add(slot.rank).Null().Null();
    Row row(session->get());
    row.Add(found->second).Add(found->second).Null().Add(slot.session).Add(slot.rank);
    row.Null().Null().Null().Null();
    if (!run_row.Insert() || !row.Insert()) return Failed();
    return found->second;
  }

  Result<void> AddProbes() {
    const Result<Statement> insert = Insert("probe", 15);
    if (!insert.ok()) return insert.error();
    for (std::size_t i = 0; i < source_.slots().size(); ++i) {
      const Slot& slot = source_.slots()[i];
      const Result<std::uint64_t> session = SessionOf(slot);
      if (!session.ok()) return session.error();
      Row row(insert->get());
      row.Add(static_cast<std::uint64_t>(i)).Add(*session).Add(slot.probe).Add(slot.site);
      row.Add(slot.device).Add(slot.dtype_name);
      row.Add(fmt::format("[{}]", fmt::join(slot.shape, ", "))).Add(slot.payload_bytes);
      row.Add(slot.capture_id).Add(static_cast<std::uint64_t>(slot.invocation)).Add(slot.order);
      row.Add(static_cast<std::uint64_t>(slot.every)).Add(slot.shard);
      slot.graph.empty() ? row.Null() : row.Add(slot.graph);
      slot.graph_is_given ? row.Add(slot.graph) : row.Null();
      if (!row.Insert()) return Failed();
    }
    return {};
  }

  Result<void> AddSnapshots() {
    const Result<Statement> insert = Insert("snapshot", 27);
    const Result<Statement> insert_comparison = Insert("comparison", 4);
    if (!insert.ok() || !insert_comparison.ok()) return Failed();
    for (std::size_t slot = 0; slot < source_.slots().size(); ++slot) {
      const Result<std::vector<Key>> keys = source_.Keys(slot);
      if (!keys.ok()) return keys.error();
      for (const Key& key : *keys) {
        Row row(insert->get());
        const Result<Snapshot> snapshot = source_.Get(slot, key);
        FillSnapshot(slot, key, snapshot, &row);
        if (!row.Insert()) return Failed();
        if (!snapshot.ok() || !snapshot->comparison) continue;
        Row comparison(insert_comparison->get());
        comparison.Add(static_cast<std::uint64_t>(sqlite3_last_insert_rowid(database_)));
        comparison.Add(snapshot->comparison->mismatched).Add(snapshot->comparison->max_abs);
        comparison.Add(snapshot->comparison->max_rel);
        if (!comparison.Insert()) return Failed();
      }
    }
    return {};
  }

  // What cannot be read is NULL.
  void FillSnapshot(std::size_t slot, const Key& key, const Result<Snapshot>& snapshot, Row* row) {
    row->Null().Add(static_cast<std::uint64_t>(slot)).Add(key.replay).Null();
    if (!snapshot.ok()) return;
    snapshot->step < 0 ? row->Null() : row->Add(snapshot->step);
    row->Add(snapshot->serial).Add(snapshot->timestamp_ns).Null().Null().Null();
    snapshot->hash ? row->Add(fmt::format("{:016x}", *snapshot->hash)) : row->Null();
    row->Null();
    const Result<numerics::Stats> stats = StatsOf(source_, *snapshot);
    if (!stats.ok()) return;
    row->Add(stats->count).Add(stats->nan).Add(stats->pos_inf).Add(stats->neg_inf);
    row->Add(stats->zero).Add(stats->subnormal).Add(stats->min).Add(stats->max);
    row->Add(stats->mean).Add(stats->std).Add(stats->abs_max).Add(stats->l1).Add(stats->l2);
    stats->has_nonfinite ? row->Add(stats->first_nonfinite) : row->Null();
    stats->has_hash ? row->Add(fmt::format("{:016x}", stats->hash)) : row->Null();
  }

  Result<void> AddLosses() {
    const Result<Statement> insert = Insert("loss", 9);
    if (!insert.ok()) return insert.error();
    for (const Gap& gap : source_.Gaps()) {
      Row row(insert->get());
      row.Null().Add(static_cast<std::uint64_t>(gap.slot)).Add(gap.cause).Add(gap.count);
      row.Null().Null().Add(gap.after_replay).Add(gap.before_replay).Null();
      if (!row.Insert()) return Failed();
    }
    return {};
  }

  std::map<std::pair<std::string, int>, std::uint64_t> sessions_;  // by label and rank
  sqlite3* database_;
  Source& source_;
};

QueryResult::Cell CellOf(sqlite3_stmt* statement, int column) {
  const int type = sqlite3_column_type(statement, column);
  if (type == SQLITE_NULL) return {.text = "", .is_null = true};
  if (type == SQLITE_FLOAT) {
    return {.text = numerics::FormatRepr(sqlite3_column_double(statement, column)),
            .is_number = true};
  }
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
  return {.text = text == nullptr ? "" : text, .is_number = type == SQLITE_INTEGER};
}

}  // namespace

void CloseDatabase::operator()(sqlite3* database) const { sqlite3_close(database); }

namespace {

// A recording's own catalogue, after it has taken in what is new.
Result<Database> OpenCatalogue(const std::string& directory) {
  if (const auto updated = recording::UpdateCatalogue(directory); !updated.ok()) {
    return updated.error();
  }
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(recording::CataloguePath(directory).c_str(), &opened,
                                   SQLITE_OPEN_READONLY, nullptr);
  Database database(opened);
  if (code != SQLITE_OK) return SqlError(opened, "cannot open the catalogue of " + directory);
  return database;
}

}  // namespace

Result<Database> MakeDatabase(Source& source) {
  const auto recordings = source.Recordings();
  if (recordings.size() == 1 && source.Describe().kind == "recording") {
    // Else it lies where nobody may write; then the same tables are made in memory.
    if (Result<Database> own = OpenCatalogue(recordings.front()->directory()); own.ok()) return own;
  }
  sqlite3* opened = nullptr;
  const int code = sqlite3_open(":memory:", &opened);
  Database database(opened);
  if (code != SQLITE_OK) return SqlError(opened, "cannot make a database");
  if (Result<void> filled = Filler(database.get(), source).Run(); !filled.ok()) {
    return filled.error();
  }
  return database;
}

Result<QueryResult> Query(sqlite3* database, const std::string& sql) {
  sqlite3_stmt* prepared = nullptr;
  const char* rest = nullptr;
  if (sqlite3_prepare_v2(database, sql.c_str(), -1, &prepared, &rest) != SQLITE_OK) {
    return Error{sqlite3_errmsg(database)};
  }
  const Statement statement(prepared);
  if (!statement) return Error{"there is no statement in it"};
  if (rest != nullptr && std::string_view(rest).find_first_not_of(" \t\n;") != std::string::npos) {
    return Error{"one statement at a time"};
  }
  if (sqlite3_stmt_readonly(prepared) == 0) return Error{"a query may only read"};
  QueryResult result;
  for (int column = 0; column < sqlite3_column_count(prepared); ++column) {
    result.columns.emplace_back(sqlite3_column_name(prepared, column));
  }
  int code = SQLITE_ROW;
  while ((code = sqlite3_step(prepared)) == SQLITE_ROW) {
    std::vector<QueryResult::Cell> row;
    for (int column = 0; column < sqlite3_column_count(prepared); ++column) {
      row.push_back(CellOf(prepared, column));
    }
    result.rows.push_back(std::move(row));
  }
  if (code != SQLITE_DONE) return Error{sqlite3_errmsg(database)};
  return result;
}

}  // namespace cgdebug::source
