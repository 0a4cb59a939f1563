// op_log_fixture.h: a page of an op log in a real segment, and its entries.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "libprobe/ring/op_log_table.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::test {

// Row i is "row<i>", of i + 1 elements of float32.
inline std::vector<ring::OpLogRow> MakeRows(std::size_t count) {
  std::vector<ring::OpLogRow> rows(count);
  for (std::size_t i = 0; i < count; ++i) {
    rows[i].probe_id = 100 + i;
    rows[i].dtype = layout::Dtype::kFloat32;
    rows[i].shape = {i + 1};
    rows[i].name = "row" + std::to_string(i);
    rows[i].site = "model.py:" + std::to_string(i);
    rows[i].op = std::to_string(i) + " aten.mm";
  }
  return rows;
}

// The registration of a page of these rows, whose table it puts into the segment.
inline layout::SlotRegistration MakeOpLogSlot(ring::SegmentWriter& segment,
                                              const std::vector<ring::OpLogRow>& rows,
                                              std::uint32_t capacity) {
  layout::SlotRegistration r =
      MakeSlot("op log", rows.size() * sizeof(layout::DeviceStats) / 4, capacity);
  r.dtype = static_cast<std::uint16_t>(layout::Dtype::kUint8);
  r.dims = 2;
  r.shape[0] = rows.size();
  r.shape[1] = sizeof(layout::DeviceStats);
  r.flags = layout::kSlotHoldsOpLog;
  r.actions = layout::kActionRecord | layout::kActionStats;
  const std::vector<std::byte> table = ring::EncodeOpLog(rows);
  const ring::Block block = segment.Allocate(table.size(), 0);
  std::memcpy(block.data, table.data(), table.size());
  r.expected_extent = block.extent;
  r.expected_offset = block.offset;
  r.table_bytes = static_cast<std::uint32_t>(table.size());
  return r;
}

// The statistics of a tensor of ones, with a NaN at `nan_at` if that is not negative.
inline layout::DeviceStats StatsOfRow(std::uint64_t count, std::int64_t nan_at = -1) {
  layout::DeviceStats stats = {};
  const std::uint64_t finite = nan_at < 0 ? count : count - 1;
  stats.count = count;
  stats.min = stats.max = stats.shift = 1;
  stats.l1 = stats.l2_squared = static_cast<double>(finite);
  stats.flags = layout::kStatsHasHash;
  if (nan_at >= 0) {
    stats.nan = 1;
    stats.first_nonfinite = static_cast<std::uint64_t>(nan_at);
    stats.flags |= layout::kStatsHasNonfinite;
  }
  return stats;
}

// One replay; the row `nan_row` has a NaN.
inline void WriteRows(ring::SlotRingWriter& writer, std::size_t nan_row = ~std::size_t{0}) {
  if (!writer.Begin()) return;
  const std::size_t count = writer.payload_bytes() / sizeof(layout::DeviceStats);
  std::vector<layout::DeviceStats> rows;
  for (std::size_t i = 0; i < count; ++i) rows.push_back(StatsOfRow(i + 1, i == nan_row ? 0 : -1));
  std::memcpy(writer.payload(), rows.data(), writer.payload_bytes());
  writer.Commit(1);
}

}  // namespace cgdebug::test
