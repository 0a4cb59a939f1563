#include "daemon/core/recording/catalogue/snapshot_row.h"

#include <fmt/format.h>

namespace cgdebug::recording {
namespace {

std::string InsertSnapshot() {
  std::string sql = "insert or ignore into snapshot values (?,?,?,?,?,?,?,?,?,?,?,?,?";
  numerics::Stats::ForEachNumber([&](const layout::Field&, auto) { sql += ",?"; });
  return sql + ",?,?,?)";
}

}  // namespace

std::string HashText(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

SnapshotInsert::SnapshotInsert(sqlite3* database)
    : database_(database),
      snapshot_(database, InsertSnapshot().c_str()),
      comparison_(database, "insert or ignore into comparison values (?,?,?,?)") {}

bool SnapshotInsert::Run(const SnapshotRow& row) {
  std::optional<std::uint64_t> first;
  std::optional<std::string> xor_hash, ordered_hash;
  if (row.stats && row.stats->has_nonfinite) first = row.stats->first_nonfinite;
  if (row.stats && row.stats->has_hash) xor_hash = HashText(row.stats->hash);
  if (row.stats && row.stats->has_ordered_hash) {
    ordered_hash = fmt::format("{:08x}", row.stats->ordered_hash);
  }
  if (!snapshot_.Run(row.number, row.probe, row.replay, row.iteration, row.ordinal, row.step,
                     row.serial, row.timestamp_ns, row.segment, row.offset, row.length, row.hash,
                     row.unchanged, row.stats, first, xor_hash, ordered_hash)) {
    return false;
  }
  if (!row.comparison) return true;
  const auto number =
      row.number.value_or(static_cast<std::uint64_t>(sqlite3_last_insert_rowid(database_)));
  const auto& [mismatched, max_abs, max_rel] = *row.comparison;
  // Only the differences of elements that do not match are measured.
  if (mismatched == 0) return comparison_.Run(number, mismatched, std::nullopt, std::nullopt);
  return comparison_.Run(number, mismatched, max_abs, max_rel);
}

}  // namespace cgdebug::recording
