#include "python/src/recording_columns.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>

namespace py = pybind11;

namespace cgdebug::python {
namespace {

using numerics::Stats;
using source::Snapshot;
using Row = SnapshotColumns::Row;

// One number of each row.
template <typename T, typename Get>
py::array_t<T> Array(const SnapshotColumns& columns, const Get& get) {
  py::array_t<T> array(static_cast<py::ssize_t>(columns.rows.size()));
  T* out = array.mutable_data();
  for (const Row& row : columns.rows) *out++ = static_cast<T>(get(row));
  return array;
}

// One number of each row's snapshot or statistics; `absent` for a row that lacks them.
template <typename T, typename Get>
py::array_t<T> OfSnapshot(const SnapshotColumns& columns, T absent, const Get& get) {
  return Array<T>(columns, [&](const Row& row) -> T {
    return row.snapshot ? static_cast<T>(get(*row.snapshot)) : absent;
  });
}
template <typename T, typename Get>
py::array_t<T> OfStats(const SnapshotColumns& columns, T absent, const Get& get) {
  return Array<T>(columns, [&](const Row& row) -> T {
    return row.stats ? static_cast<T>(get(*row.stats)) : absent;
  });
}

void ReadRow(source::Source& source, Row* row, std::vector<std::string>* errors) {
  Result<Snapshot> snapshot = source.Get(row->slot, row->key);
  if (!snapshot.ok()) return errors->push_back(snapshot.error().message);
  row->snapshot = *std::move(snapshot);
  Result<Stats> stats = source::StatsOf(source, *row->snapshot);
  if (!stats.ok()) return errors->push_back(stats.error().message);
  row->stats = *std::move(stats);
}

}  // namespace

Result<SnapshotColumns> ReadColumns(source::Source& source, const std::vector<std::size_t>& slots,
                                    std::uint64_t first_replay, std::uint64_t last_replay) {
  SnapshotColumns columns;
  for (const std::size_t slot : slots) {
    const Result<std::vector<source::Key>> keys = source.Keys(slot);
    if (!keys.ok()) return keys.error();
    for (const source::Key& key : *keys) {
      if (key.replay < first_replay || key.replay > last_replay) continue;
      columns.rows.push_back({.slot = slot, .key = key, .snapshot = {}, .stats = {}});
    }
  }
  // A recording is written replay by replay, so reading slot by slot would jump through the file.
  std::vector<Row*> by_replay;
  for (Row& row : columns.rows) by_replay.push_back(&row);
  std::ranges::stable_sort(by_replay, {}, [&](const Row* row) {
    return std::tuple(row->key.replay, source.slots()[row->slot].order);
  });
  for (Row* row : by_replay) ReadRow(source, row, &columns.errors);
  return columns;
}

py::dict ToDict(const SnapshotColumns& columns) {
  py::dict dict;
  dict["slot"] = Array<std::int64_t>(columns, [](const Row& row) { return row.slot; });
  dict["replay"] = Array<std::uint64_t>(columns, [](const Row& row) { return row.key.replay; });
  dict["iteration"] =
      Array<std::uint32_t>(columns, [](const Row& row) { return row.key.iteration; });
  dict["is_read"] = Array<bool>(columns, [](const Row& row) { return row.stats.has_value(); });
  const auto of_snapshot = [&](const char* name, std::int64_t absent, auto get) {
    dict[name] = OfSnapshot<std::int64_t>(columns, absent, get);
  };
  of_snapshot("step", -1, [](const Snapshot& one) { return one.step; });
  of_snapshot("serial", 0, [](const Snapshot& one) { return one.serial; });
  of_snapshot("timestamp_ns", 0, [](const Snapshot& one) { return one.timestamp_ns; });
  Stats::ForEachNumber([&](const layout::Field& field, auto member) {
    const auto get = [&](const Stats& stats) { return stats.*member; };
    if constexpr (std::is_same_v<decltype(member), double Stats::*>) {
      dict[field.name] = OfStats<double>(columns, NAN, get);
    } else {
      dict[field.name] = OfStats<std::int64_t>(columns, 0, get);
    }
  });
  dict["first_nonfinite"] = OfStats<std::int64_t>(columns, -1, [](const Stats& stats) {
    return stats.has_nonfinite ? static_cast<std::int64_t>(stats.first_nonfinite) : -1;
  });
  dict["hash"] = OfSnapshot<std::uint64_t>(
      columns, 0, [](const Snapshot& one) { return one.hash.value_or(0); });
  dict["has_hash"] =
      OfSnapshot<bool>(columns, false, [](const Snapshot& one) { return one.hash.has_value(); });
  dict["xor_hash"] = OfStats<std::uint64_t>(columns, 0, [](const Stats& one) { return one.hash; });
  dict["has_xor_hash"] =
      OfStats<bool>(columns, false, [](const Stats& one) { return one.has_hash; });
  dict["ordered_hash"] =
      OfStats<std::uint64_t>(columns, 0, [](const Stats& one) { return one.ordered_hash; });
  dict["has_ordered_hash"] =
      OfStats<bool>(columns, false, [](const Stats& one) { return one.has_ordered_hash; });
  dict["errors"] = columns.errors;
  return dict;
}

}  // namespace cgdebug::python
