// database.h: a source as SQL tables.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/base/result.h"

struct sqlite3;

namespace cgdebug::source {

struct CloseDatabase {
  void operator()(sqlite3* database) const;
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

// The tables of daemon/core/recording/catalogue/catalogue_schema.h. A recording has its own
// catalogue, which is brought up to date; for any other source the tables are filled in memory.
Result<Database> MakeDatabase(Source& source);

// The tables in memory for every source. A snapshot that cannot be read has a row of NULLs here; a
// catalogue has no row for it.
Result<Database> FillDatabase(Source& source);

struct Blob {
  std::string bytes;
};
// A value as SQLite holds it; monostate is NULL.
using Value = std::variant<std::monostate, std::int64_t, double, std::string, Blob>;

struct QueryResult {
  struct Cell {
    Value value;

    bool is_null() const { return std::holds_alternative<std::monostate>(value); }
    bool is_number() const {
      return std::holds_alternative<std::int64_t>(value) || std::holds_alternative<double>(value);
    }
    // Empty for NULL; a double as Python's repr.
    std::string text() const;
  };
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;
};

// Runs one statement; `parameters` are the values of its question marks, in order. Refuses to
// write, to attach other files, and to begin a transaction.
// Fails: what SQLite says, with the place.
Result<QueryResult> Query(sqlite3* database, const std::string& sql,
                          std::span<const Value> parameters = {});

}  // namespace cgdebug::source
