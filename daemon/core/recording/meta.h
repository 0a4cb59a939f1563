// meta.h: the meta blocks that only the format itself needs, beside those of types.h.
//
// EncodeFields() writes them, DecodeFields() reads them (field_codec.h). Neither checks what values
// mean: whether a slot exists, or a shape fits its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/core/base/field_codec.h"
#include "daemon/core/recording/types.h"
#include "proto/layout/recording_layout.h"

namespace cgdebug::recording {

struct Commit {
  std::uint64_t number = 0;  // every record up to this one is on the disk
  std::int64_t timestamp_ns = 0;

  // Numbers and names are those of `Commit` in proto/recording.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "number"}, self.number);
    visit(Field{2, "timestamp_ns"}, self.timestamp_ns);
  }
};

struct SlotRun {
  std::uint32_t slot = 0;
  std::uint64_t row_count = 0;
  std::uint64_t first_replay = 0;
  std::uint64_t last_replay = 0;
  std::uint64_t first_ordinal = 0;
  std::uint64_t last_ordinal = 0;

  // Numbers and names are those of `SlotRun` in proto/recording.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "slot"}, self.slot);
    visit(Field{2, "row_count"}, self.row_count);
    visit(Field{3, "first_replay"}, self.first_replay);
    visit(Field{4, "last_replay"}, self.last_replay);
    visit(Field{5, "first_ordinal"}, self.first_ordinal);
    visit(Field{6, "last_ordinal"}, self.last_ordinal);
  }
};

struct Index {
  std::uint64_t previous_offset = 0;  // 0: the first of its file
  std::uint64_t first_number = 0;
  std::vector<SlotRun> runs;
  std::vector<std::uint64_t> others;  // offsets of records that are not snapshots

  // Numbers and names are those of `Index` in proto/recording.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "previous_offset"}, self.previous_offset);
    visit(Field{2, "first_number"}, self.first_number);
    visit(Field{3, "runs"}, self.runs);
    visit(Field{4, "others"}, self.others);
  }
};

// Whether an index tells where records of this type lie.
constexpr bool IsOther(layout::RecordType type) {
  using layout::RecordType;
  return type == RecordType::kSession || type == RecordType::kSlot || type == RecordType::kLoss ||
         type == RecordType::kMark || type == RecordType::kCommit;
}

struct End {
  std::uint64_t index_offset = 0;  // 0: none
  StopReason reason = StopReason::kNone;
  std::uint64_t snapshots = 0;
  std::uint64_t lost = 0;
  std::int64_t timestamp_ns = 0;
  std::string padding;

  // Numbers and names are those of `End` in proto/recording.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    using layout::Field;
    visit(Field{1, "index_offset"}, self.index_offset);
    visit(Field{2, "reason"}, self.reason);
    visit(Field{3, "snapshots"}, self.snapshots);
    visit(Field{4, "lost"}, self.lost);
    visit(Field{5, "timestamp_ns"}, self.timestamp_ns);
    visit(Field{15, "padding"}, self.padding);
  }
};

}  // namespace cgdebug::recording
