// op_log_layout.h: the table that says what the rows of an op log are.
//
// A slot with kSlotHoldsOpLog holds one page of the log of one capture, or of one eager run: a row
// for each tensor that an op wrote. The payload of an entry is rows x DeviceStats. What stays the
// same from replay to replay is written once, in a block of its own, before the slot is published
// (SlotRegistration::expected_extent, expected_offset, table_bytes):
//
//   table := OpLogRow[rows] | texts
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "proto/layout/device_stats.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::layout {

inline constexpr std::uint32_t kMaxOpLogRows = 1024;  // of one page; a longer log has more pages
inline constexpr std::uint32_t kMaxOpLogTableBytes = 32u << 20;
inline constexpr std::size_t kMaxOpTextBytes = 16383;    // of one row: some 2,700 inputs
inline constexpr std::size_t kMaxOpDetailsBytes = 8191;  // likewise

// Row i belongs to order SlotRegistration::order + i: a page takes as many orders as it has rows.
struct OpLogRow {
  std::uint64_t probe_id;  // unique in the process; rows of one name share it
  SlotFirst nan;           // as in SlotHistory: written by the daemon only
  SlotFirst inf;
  std::uint64_t shape[kMaxDims];
  std::uint32_t invocation;   // which row of this name it is in the capture, from 0
  std::uint32_t text_offset;  // from the start of the table: name, site, op (SlotRegistration),
                              // details, one after another, not terminated
  std::uint16_t name_bytes;
  std::uint16_t site_bytes;
  std::uint16_t op_bytes;
  std::uint16_t dtype;  // Dtype
  std::uint8_t dims;
  std::uint8_t reserved0;
  // Which launch of the page's capture computes it, from 1 in stream order, together with the other
  // rows of that number; 0: a page of an eager run.
  std::uint16_t launch;
  // What else is known of the row, a JSON object (client/docs/op-log.md); 0: nothing.
  std::uint32_t details_bytes;
};
static_assert(sizeof(OpLogRow) == 240);
static_assert(std::is_trivially_copyable_v<OpLogRow>);
static_assert(kMaxOpLogRows *
                  (sizeof(OpLogRow) + kMaxOpTextBytes + kMaxOpDetailsBytes + 2 * kMaxNameBytes) <=
              kMaxOpLogTableBytes);

// A row that is none: its op says what an op log does not show, and why. It lies in a page of an
// eager run, and its tensor is empty.
//   "gap 12 TEXT"     of the log of capture 12
//   "gap log TEXT"    of the eager run whose rows come before it in the page
//   "gap eager TEXT"  of one of the eager runs that began before it
//   "gap job TEXT"    of the job: what ought to have a log and has none
constexpr bool IsOpGap(std::string_view op) { return op.substr(0, 4) == "gap "; }
// Another one: what is known of the order of the nodes of a captured graph.
//   "order 12 looked NODES UNORDERED UNKNOWN"
//       of capture 12: how many nodes it has, how many of them are not in order with all others,
//       and of how many of these nobody knows which bytes they touch
//   "order 12 race TEXT"
//       two ops that no path orders, one of which writes bytes that the other touches
//   "order 12 possible TEXT"
//       the same, where nobody knows which bytes of a tensor they touch
//   "order 12 missing TEXT"
//       why the order of capture 12 is not known
//   "order 12 broke TEXT"
//       capture 12 ended with an error: the op that raised it, or the last one before it
// Or what a process tells of a graph that it launches in pieces: the newest of these holds.
//   "order 12 stands TEXT", "order 12 failed TEXT"
//       which piece runs for long, or has failed
//   "order 12 passed"
//       the one that ran for long has ended
// Or what it tells of its eager ops, as capture 0; COUNT is how often it has told such a thing.
//   "order 0 stands COUNT TEXT"
//       which op that waits for other ranks it has called, and has called no op since
//   "order 0 passed COUNT"
//       it has gone on
constexpr bool IsOpOrder(std::string_view op) { return op.substr(0, 6) == "order "; }
// Another one: where the memory is now that captured graphs were given. Of a capture, those with
// the greatest number behind it hold.
//   "audit 12 3 looked TENSORS REPLAYS"
//       of capture 12, the third time that the process tells: at how many tensors it was looked,
//       after how many replays
//   "audit 12 3 wrong TEXT", "audit 12 3 latent TEXT", "audit 12 3 hazard TEXT"
//       a finding
//   "audit 12 3 missing TEXT"
//       what could not be looked at
//   "audit 12 3 pool FIRST SECOND DEVICE BYTES SEGMENTS HELD WAITING"
//       its memory pool on a device, as torch's allocator has it; these are of the pool before
//       them:
//   "audit 12 3 stream BYTES STREAM", "audit 12 3 keeps BYTES BLOCKS TEXT"
//       how much is of a stream, if several have some; what is held, and by whom
//   "audit 12 3 more BYTES BLOCKS"
//       what is held by others
constexpr bool IsOpAudit(std::string_view op) { return op.substr(0, 6) == "audit "; }
constexpr bool IsNoRow(std::string_view op) {
  return IsOpGap(op) || IsOpOrder(op) || IsOpAudit(op);
}

// Of a row that shows what lies in the padding rows of what its only input shows.
constexpr bool IsPaddingOp(std::string_view op) { return op == "padding" || op == "padding.mixed"; }
// Whether a row's op (SlotRegistration::op) says so: "5 padding 4". Its statistics may be of a part
// of the tensor alone.
constexpr bool IsOfPadding(std::string_view text) {
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos) return false;
  text.remove_prefix(space + 1);
  return IsPaddingOp(text.substr(0, text.find(' ')));
}

// SlotHead::reached: a launch stores it when it begins, that is, when the ops of its rows are done.
// So the page shows how far a replay came that never finishes.
constexpr std::uint64_t ReachedWord(std::uint64_t replay, std::uint32_t launch) {
  return replay << 16 | launch;
}
constexpr std::uint64_t ReachedReplay(std::uint64_t word) { return word >> 16; }
constexpr std::uint32_t ReachedLaunch(std::uint64_t word) {
  return static_cast<std::uint32_t>(word & 0xffff);
}

}  // namespace cgdebug::layout
