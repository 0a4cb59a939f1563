// recording_columns.h: everything about many snapshots except their values, as columns.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::python {

// One row per snapshot: slots in the requested order, replays ascending within each.
struct SnapshotColumns {
  struct Row {
    std::size_t slot = 0;
    source::Key key;
    std::optional<source::Snapshot> snapshot;  // absent: it cannot be read
    std::optional<numerics::Stats> stats;
  };
  std::vector<Row> rows;
  std::vector<std::string> errors;  // why rows are incomplete, one each
};

// Reads every snapshot of these slots once, in the order in which they lie in a recording.
// Thread: any; it needs no interpreter. Fails: a slot cannot be read at all.
Result<SnapshotColumns> ReadColumns(source::Source& source, const std::vector<std::size_t>& slots,
                                    std::uint64_t first_replay, std::uint64_t last_replay);

// NumPy arrays by name; absent numbers are -1, 0 or NaN. `is_read` says which rows are complete,
// `errors` why the others are not.
pybind11::dict ToDict(const SnapshotColumns& columns);

}  // namespace cgdebug::python
