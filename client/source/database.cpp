#include "client/source/database.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "daemon/core/base/suggest.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/catalogue/catalogue.h"
#include "daemon/core/recording/catalogue/catalogue_schema.h"
#include "daemon/core/recording/catalogue/snapshot_row.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::source {
namespace {

Error SqlError(sqlite3* database, std::string_view what) {
  return Error{fmt::format("{}: {}", what, sqlite3_errmsg(database))};
}

using recording::Statement;
using PreparedQuery = std::unique_ptr<sqlite3_stmt, recording::Closer>;

class Filler {
 public:
  Filler(sqlite3* database, Source& source) : database_(database), source_(source) {}

  Result<void> Run() {
    if (Result<void> made = Execute(recording::CatalogueSchema().c_str()); !made.ok()) return made;
    if (Result<void> begun = Execute("BEGIN"); !begun.ok()) return begun;
    Result<void> done = AddProbes();
    if (done.ok()) done = AddSnapshots();
    if (done.ok()) done = AddLosses();
    // Rows of NULLs stand for what is damaged, not for what may be read at the next attempt.
    for (const recording::RecordingReader* reader : source_.Recordings()) {
      if (done.ok()) done = reader->FetchedAll();
    }
    return done.ok() ? Execute("COMMIT") : done;
  }

 private:
  Result<void> Execute(const char* sql) {
    if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
    return SqlError(database_, "cannot make the tables");
  }
  Error Failed() { return SqlError(database_, "cannot fill the tables"); }

  Result<void> AddProbes() {
    Statement run(database_, "insert into run values (?,?,?,null,null)");
    Statement session(database_, "insert into session values (?,?,?,?,?,null,null,null,null)");
    Statement probe(database_,
                    "insert into probe values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    for (std::size_t i = 0; i < source_.slots().size(); ++i) {
      const Slot& slot = source_.slots()[i];
      // Not every source knows the uuids of its sessions.
      const auto [found, is_new] =
          sessions_.try_emplace({slot.uuid, slot.session, slot.rank}, sessions_.size() + 1);
      const auto uuid = slot.uuid.empty() ? std::nullopt : std::optional(slot.uuid);
      const std::uint64_t id = found->second;
      if (is_new && (!run.Run(id, slot.session, slot.rank) ||
                     !session.Run(id, id, uuid, slot.session, slot.rank))) {
        return Failed();
      }
      const auto graph = slot.graph.empty() ? std::nullopt : std::optional(slot.graph);
      const auto label = slot.graph_is_given ? std::optional(slot.graph) : std::nullopt;
      if (!probe.Run(i, id, slot.probe, slot.site, slot.device, slot.dtype_name,
                     fmt::format("[{}]", fmt::join(slot.shape, ", ")), slot.payload_bytes,
                     slot.graph_id, slot.invocation, slot.order, slot.every, slot.shard, graph,
                     label, slot.op.empty() ? std::nullopt : std::optional(slot.op.text()),
                     slot.in_body, slot.part,
                     slot.details.empty() ? std::nullopt : std::optional(slot.details),
                     slot.thread == 0 ? std::nullopt : std::optional(slot.thread))) {
        return Failed();
      }
    }
    return {};
  }

  Result<void> AddSnapshots() {
    recording::SnapshotInsert insert(database_);
    for (std::size_t slot = 0; slot < source_.slots().size(); ++slot) {
      const Result<std::vector<Key>> keys = source_.Keys(slot);
      if (!keys.ok()) return keys.error();
      for (const Key& key : *keys) {
        if (!insert.Run(RowOf(slot, key))) return Failed();
      }
    }
    return {};
  }

  // What cannot be read is null.
  recording::SnapshotRow RowOf(std::size_t slot, const Key& key) {
    recording::SnapshotRow row{.probe = slot, .replay = key.replay, .iteration = key.iteration};
    const Result<Snapshot> snapshot = source_.Get(slot, key);
    if (!snapshot.ok()) return row;
    if (snapshot->step >= 0) row.step = snapshot->step;
    row.serial = snapshot->serial;
    row.timestamp_ns = snapshot->timestamp_ns;
    if (snapshot->hash) row.hash = recording::HashText(*snapshot->hash);
    row.comparison = snapshot->comparison;
    const Result<numerics::Stats> stats = StatsOf(source_, *snapshot);
    if (stats.ok()) row.stats = *stats;
    return row;
  }

  Result<void> AddLosses() {
    Statement insert(database_, "insert into loss values (null,?,?,?,null,null,?,?,null)");
    for (const Gap& gap : source_.Gaps()) {
      if (!insert.Run(gap.slot, gap.cause, gap.count, gap.after_replay, gap.before_replay)) {
        return Failed();
      }
    }
    return {};
  }

  // By uuid, label and rank.
  std::map<std::tuple<std::string, std::string, int>, std::uint64_t> sessions_;
  sqlite3* database_;
  Source& source_;
};

Value ValueOf(sqlite3_stmt* statement, int column) {
  const auto bytes = [&](const void* data) {
    const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement, column));
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
  };
  switch (sqlite3_column_type(statement, column)) {
    case SQLITE_NULL:
      return {};
    case SQLITE_INTEGER:
      return static_cast<std::int64_t>(sqlite3_column_int64(statement, column));
    case SQLITE_FLOAT:
      return sqlite3_column_double(statement, column);
    case SQLITE_BLOB:
      return Blob{bytes(sqlite3_column_blob(statement, column))};
    default:
      return bytes(sqlite3_column_text(statement, column));
  }
}

Result<void> Bind(sqlite3_stmt* statement, std::span<const Value> parameters) {
  const auto wanted = static_cast<std::size_t>(sqlite3_bind_parameter_count(statement));
  if (wanted != parameters.size()) {
    return Error{fmt::format("the query has {} parameter{}, and {} value{} given", wanted,
                             wanted == 1 ? "" : "s", parameters.size(),
                             parameters.size() == 1 ? " was" : "s were")};
  }
  int place = 0;
  for (const Value& value : parameters) {
    ++place;
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      sqlite3_bind_int64(statement, place, *integer);
    } else if (const auto* number = std::get_if<double>(&value)) {
      sqlite3_bind_double(statement, place, *number);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      sqlite3_bind_text64(statement, place, text->data(), text->size(), SQLITE_TRANSIENT,
                          SQLITE_UTF8);
    } else if (const auto* blob = std::get_if<Blob>(&value)) {
      sqlite3_bind_blob64(statement, place, blob->bytes.data(), blob->bytes.size(),
                          SQLITE_TRANSIENT);
    }  // what is not bound is NULL
  }
  return {};
}

// A query reads the tables and nothing else. SQLite counts these as reading: ATTACH, which makes
// a missing file; a transaction, which would keep others from the catalogue; and a
// setting of the connection.
int Authorize(void*, int action, const char* name, const char* value, const char*, const char*) {
  switch (action) {
    case SQLITE_ATTACH:
    case SQLITE_DETACH:
    case SQLITE_TRANSACTION:
    case SQLITE_SAVEPOINT:
      return SQLITE_DENY;
    case SQLITE_PRAGMA: {
      const std::string_view pragma = name == nullptr ? "" : name;
      const bool describes = pragma.starts_with("table_") || pragma.starts_with("index_");
      return value == nullptr || describes ? SQLITE_OK : SQLITE_DENY;
    }
    default:
      return SQLITE_OK;
  }
}

// --- aggregates that SQLite lacks
// ------------------------------------------------------------------

using Numbers = std::vector<double>;

Numbers* NumbersOf(sqlite3_context* context, bool makes) {
  auto** const place =
      static_cast<Numbers**>(sqlite3_aggregate_context(context, makes ? sizeof(Numbers*) : 0));
  if (place == nullptr) return nullptr;
  if (*place == nullptr && makes) *place = new Numbers;
  return *place;
}

// Leaves NULL out, as sum() and avg() do. NaN is NULL in SQLite.
void AddNumber(sqlite3_context* context, int /*count*/, sqlite3_value** values) {
  if (sqlite3_value_type(values[0]) == SQLITE_NULL) return;
  Numbers* const numbers = NumbersOf(context, /*makes=*/true);
  if (numbers != nullptr) numbers->push_back(sqlite3_value_double(values[0]));
}

double MedianOf(Numbers* numbers) {
  const auto middle = numbers->begin() + static_cast<std::ptrdiff_t>(numbers->size() / 2);
  std::nth_element(numbers->begin(), middle, numbers->end());
  if (numbers->size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(numbers->begin(), middle)) / 2;
}

// Of a sample: divided by count - 1.
double DeviationOf(Numbers* numbers) {
  double mean = 0, squares = 0, seen = 0;
  for (const double number : *numbers) {
    const double step = number - mean;
    mean += step / ++seen;
    squares += step * (number - mean);
  }
  return std::sqrt(squares / (seen - 1));
}

template <double (*kResult)(Numbers*), std::size_t kFewest>
void Finish(sqlite3_context* context) {
  const std::unique_ptr<Numbers> numbers(NumbersOf(context, /*makes=*/false));
  if (numbers == nullptr || numbers->size() < kFewest) return sqlite3_result_null(context);
  sqlite3_result_double(context, kResult(numbers.get()));
}

Result<void> AddAggregates(sqlite3* database) {
  constexpr int kFlags = SQLITE_UTF8 | SQLITE_DETERMINISTIC;
  const auto add = [&](const char* name, void (*finish)(sqlite3_context*)) {
    return sqlite3_create_function_v2(database, name, 1, kFlags, nullptr, nullptr, &AddNumber,
                                      finish, nullptr) == SQLITE_OK;
  };
  if (add("median", &Finish<&MedianOf, 1>) && add("stddev", &Finish<&DeviationOf, 2>)) return {};
  return SqlError(database, "cannot add functions");
}

// A recording's own catalogue, after it has taken in what is new.
Result<Database> OpenCatalogue(const std::string& directory) {
  if (const auto updated = recording::UpdateCatalogue(directory, &CountSnapshotRead);
      !updated.ok()) {
    return updated.error();
  }
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(recording::CataloguePath(directory).c_str(), &opened,
                                   SQLITE_OPEN_READONLY | SQLITE_OPEN_NOFOLLOW, nullptr);
  Database database(opened);
  if (code != SQLITE_OK) return SqlError(opened, "cannot open the catalogue of " + directory);
  if (const Result<void> added = AddAggregates(opened); !added.ok()) return added.error();
  sqlite3_set_authorizer(opened, &Authorize, nullptr);
  return database;
}

}  // namespace

void CloseDatabase::operator()(sqlite3* database) const { sqlite3_close(database); }

std::string QueryResult::Cell::text() const {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return numerics::FormatRepr(*number);
  if (const auto* blob = std::get_if<Blob>(&value)) return blob->bytes;
  const auto* text = std::get_if<std::string>(&value);
  return text == nullptr ? "" : *text;
}

Result<Database> FillDatabase(Source& source) {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open(":memory:", &opened);
  Database database(opened);
  if (code != SQLITE_OK) return SqlError(opened, "cannot make a database");
  if (Result<void> filled = Filler(database.get(), source).Run(); !filled.ok()) {
    return filled.error();
  }
  if (const Result<void> added = AddAggregates(opened); !added.ok()) return added.error();
  sqlite3_set_authorizer(opened, &Authorize, nullptr);
  return database;
}

Result<Database> MakeDatabase(Source& source) {
  const auto recordings = source.Recordings();
  // The slots differ where a part of the recording was selected.
  if (recordings.size() == 1 && source.Describe().kind == "recording" &&
      source.slots().size() == recordings.front()->slots().size()) {
    // If the place is not writable, the same tables are made in memory.
    if (Result<Database> own = OpenCatalogue(recordings.front()->directory()); own.ok()) return own;
  }
  return FillDatabase(source);
}

namespace {

std::string WithCloseNames(sqlite3* database, std::string message) {
  const bool is_table = message.starts_with("no such table: ");
  if (!is_table && !message.starts_with("no such column: ")) return message;
  const Result<QueryResult> tables =
      Query(database, "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')", {});
  std::vector<std::string> names;
  for (std::size_t i = 0; tables.ok() && i < tables->rows.size(); ++i) {
    const auto* table = std::get_if<std::string>(&tables->rows[i].front().value);
    if (table == nullptr) continue;
    if (is_table) {
      names.push_back(*table);
    } else if (const auto none = Query(database, "SELECT * FROM " + *table + " LIMIT 0", {});
               none.ok()) {
      names.insert(names.end(), none->columns.begin(), none->columns.end());
    }
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::string typed = message.substr(message.find_last_of(" .") + 1);
  std::erase(names, typed);  // another table has it
  std::string close = DidYouMean(typed, names);
  if (close.empty()) return message;
  close.pop_back();  // the sentence goes on
  return message + "." + close;
}

}  // namespace

Result<QueryResult> Query(sqlite3* database, const std::string& sql,
                          std::span<const Value> parameters) {
  sqlite3_stmt* prepared = nullptr;
  const char* rest = nullptr;
  if (sqlite3_prepare_v2(database, sql.c_str(), -1, &prepared, &rest) != SQLITE_OK) {
    return Error{WithCloseNames(database, sqlite3_errmsg(database))};
  }
  const PreparedQuery statement(prepared);
  if (!statement) return Error{"there is no SQL statement in it"};
  if (rest != nullptr && std::string_view(rest).find_first_not_of(" \t\n;") != std::string::npos) {
    return Error{"one statement at a time"};
  }
  if (sqlite3_stmt_readonly(prepared) == 0) return Error{"a query may only read"};
  if (const Result<void> bound = Bind(prepared, parameters); !bound.ok()) return bound.error();
  QueryResult result;
  for (int column = 0; column < sqlite3_column_count(prepared); ++column) {
    result.columns.emplace_back(sqlite3_column_name(prepared, column));
  }
  int code = SQLITE_ROW;
  while ((code = sqlite3_step(prepared)) == SQLITE_ROW) {
    std::vector<QueryResult::Cell> row;
    for (int column = 0; column < sqlite3_column_count(prepared); ++column) {
      row.push_back({ValueOf(prepared, column)});
    }
    result.rows.push_back(std::move(row));
  }
  if (code != SQLITE_DONE) return Error{sqlite3_errmsg(database)};
  return result;
}

}  // namespace cgdebug::source
