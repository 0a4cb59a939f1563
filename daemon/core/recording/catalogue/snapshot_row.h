// snapshot_row.h: one snapshot as a row of a catalogue.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/core/numerics/stats.h"
#include "daemon/core/recording/catalogue/sqlite_statement.h"
#include "daemon/core/recording/types.h"

namespace cgdebug::recording {

// One row of the table `snapshot`. What is not known is null.
struct SnapshotRow {
  std::optional<std::uint64_t> number = {};  // null: SQLite counts
  std::uint64_t probe = 0;
  std::uint64_t replay = 0;
  std::uint32_t iteration = 0;
  std::optional<std::uint64_t> ordinal = {};
  std::optional<std::int64_t> step = {};
  std::optional<std::uint64_t> serial = {};
  std::optional<std::int64_t> timestamp_ns = {};
  std::optional<std::uint64_t> segment = {};
  std::optional<std::uint64_t> offset = {};
  std::optional<std::uint64_t> length = {};
  std::optional<std::string> hash = {};  // HashText()
  std::optional<bool> unchanged = {};
  std::optional<numerics::Stats> stats = {};
  std::optional<Comparison> comparison = {};  // a row of the table `comparison`
};

std::string HashText(std::uint64_t hash);

class SnapshotInsert {
 public:
  explicit SnapshotInsert(sqlite3* database);
  // Keeps a row that already has that number. False: SQLite refused.
  bool Run(const SnapshotRow& row);

 private:
  sqlite3* database_;
  Statement snapshot_;
  Statement comparison_;
};

}  // namespace cgdebug::recording
