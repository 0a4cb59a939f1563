// A job with many op logs for tools/bench/rows.py: pages of rows as the captures of a whole model
// have them, written on the host lane.
//
//   rows_bench SOCKET LOGS ROWS CAPACITY REPLAYS
//
// Prints the number of replays after each, reads a line from stdin before the next one and at the
// end. Row 100 of the last log holds a NaN from replay 2 on.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "libprobe/ring/op_log_table.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/ring/slot_ring_writer.h"
#include "proto/layout/realtime.h"

namespace cgdebug {
namespace {

constexpr std::uint64_t kRowsOfLayer = 38;
constexpr std::uint64_t kElements = 512 * 1024;
constexpr std::uint64_t kBadRow = 100;

struct Page {
  ring::SlotRingWriter writer;
  std::uint64_t first_row;
  std::uint64_t rows;
  bool is_last_log;
};

ring::OpLogRow MakeRow(std::uint64_t number) {
  ring::OpLogRow row;
  row.probe_id = number;
  row.launch = static_cast<std::uint32_t>(number / 16 + 1);
  row.dtype = layout::Dtype::kBfloat16;
  row.shape = {512, 1024};
  row.name = "fwd/model.layers." + std::to_string(number / kRowsOfLayer) + ".self_attn/mm_" +
             std::to_string(number % kRowsOfLayer);
  row.site = "modeling_llama.py:" + std::to_string(200 + number % kRowsOfLayer);
  row.op = std::to_string(number) + " aten.mm.default +1" +
           (number == 1 ? "" : " " + std::to_string(number - 1));
  return row;
}

Page MakePage(ring::SegmentWriter& segment, std::uint64_t log, std::uint64_t first_row,
              std::uint64_t count, std::uint64_t order, std::uint32_t capacity) {
  std::vector<ring::OpLogRow> rows;
  for (std::uint64_t i = 0; i < count; ++i) rows.push_back(MakeRow(first_row + i));
  const std::vector<std::byte> table = ring::EncodeOpLog(rows);
  const ring::Block beside = segment.Allocate(table.size());
  std::memcpy(beside.data, table.data(), table.size());
  layout::SlotRegistration r = {};
  r.probe_id = r.order = order;
  r.graph_id = log;
  r.dtype = static_cast<std::uint16_t>(layout::Dtype::kUint8);
  r.dims = 2;
  r.shape[0] = count;
  r.shape[1] = sizeof(layout::DeviceStats);
  r.payload_bytes = count * sizeof(layout::DeviceStats);
  r.capacity = capacity;
  r.flags = layout::kSlotHoldsOpLog;
  r.actions = layout::kActionRecord | layout::kActionStats;
  r.record_every = 1;
  r.expected_extent = beside.extent;
  r.expected_offset = beside.offset;
  r.table_bytes = static_cast<std::uint32_t>(table.size());
  const auto geometry = layout::ComputeGeometry(r.payload_bytes, r.capacity);
  r.payload_stride_bytes = geometry.payload_stride_bytes;
  r.headers_offset = geometry.headers_offset;
  r.payload_offset = geometry.payload_offset;
  std::snprintf(r.name, sizeof(r.name), "op log");
  std::snprintf(r.graph_label, sizeof(r.graph_label), "bs=%llu",
                static_cast<unsigned long long>(log));
  const ring::Block block = segment.Allocate(geometry.block_bytes, geometry.payload_offset);
  std::memcpy(block.data, &r, sizeof(r));
  segment.Publish(block);
  return {ring::SlotRingWriter(block.data, segment.producer(), segment.gate()), first_row, count,
          false};
}

void Replay(Page& page, std::uint64_t replay) {
  if (!page.writer.Begin()) return;
  std::vector<layout::DeviceStats> rows(page.rows);
  for (std::uint64_t i = 0; i < page.rows; ++i) {
    layout::DeviceStats& stats = rows[i];
    const auto value = static_cast<double>(page.first_row + i + replay);
    stats.count = kElements;
    stats.min = stats.max = stats.shift = value;
    if (page.is_last_log && page.first_row + i == kBadRow && replay > 1) {
      stats.nan = 1;
      stats.first_nonfinite = 7;
      stats.flags = layout::kStatsHasNonfinite;
    }
    const auto finite = static_cast<double>(kElements - stats.nan);
    stats.l1 = value * finite;
    stats.l2_squared = value * value * finite;
    stats.flags |= layout::kStatsHasHash;
  }
  std::memcpy(page.writer.payload(), rows.data(), page.writer.payload_bytes());
  page.writer.Commit(layout::RealtimeNs());
}

int Run(char** argv) {
  const std::uint64_t logs = std::strtoull(argv[2], nullptr, 10);
  const std::uint64_t rows = std::strtoull(argv[3], nullptr, 10);
  const auto capacity = static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10));
  const std::uint64_t replays = std::strtoull(argv[5], nullptr, 10);
  ring::Identity identity;
  identity.version = "bench";
  identity.run_id = "rows";
  identity.command = "rows_bench";
  identity.hostname = "here";
  identity.socket = argv[1];
  ring::SegmentWriter segment(identity);
  std::vector<Page> pages;
  std::uint64_t order = 1;
  for (std::uint64_t log = 1; log <= logs; ++log) {
    for (std::uint64_t first = 0; first < rows; first += layout::kMaxOpLogRows) {
      const std::uint64_t count = std::min<std::uint64_t>(rows - first, layout::kMaxOpLogRows);
      pages.push_back(MakePage(segment, log, first + 1, count, order, capacity));
      pages.back().is_last_log = log == logs;
      order += count;
    }
  }
  for (std::uint64_t replay = 1; replay <= replays; ++replay) {
    for (Page& page : pages) Replay(page, replay);
    std::printf("%llu\n", static_cast<unsigned long long>(replay));
    std::fflush(stdout);
    if (std::getchar() == EOF) break;
  }
  segment.Close(/*unlink=*/true);
  return 0;
}

}  // namespace
}  // namespace cgdebug

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "rows_bench SOCKET LOGS ROWS CAPACITY REPLAYS\n");
    return 2;
  }
  return cgdebug::Run(argv);
}
