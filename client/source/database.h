// database.h: a source as SQL tables.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/base/result.h"

struct sqlite3;

namespace cgdebug::source {

struct CloseDatabase {
  void operator()(sqlite3* database) const;
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

// The tables of daemon/core/recording/catalogue_schema.h: of a recording its own catalogue, of any
// other source the same in memory.
Result<Database> MakeDatabase(Source& source);

struct QueryResult {
  struct Cell {
    std::string text;
    bool is_number = false;
    bool is_null = false;
  };
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;
};

// One statement; writing is refused. Fails: what SQLite says, with the place.
Result<QueryResult> Query(sqlite3* database, const std::string& sql);

}  // namespace cgdebug::source
