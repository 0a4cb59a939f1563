// The bytes that cross a process boundary, frozen a second time: a mirror of each struct and
// literal versions. A failure here is a decision about compatibility, not a number to adjust.
#include <gtest/gtest.h>

#include <cstddef>

#include "proto/layout/segment_layout.h"

namespace cgdebug::layout {
namespace {

TEST(Layout, VersionsAreDecisions) {
  EXPECT_EQ(kAbiMajor, 1);
  EXPECT_EQ(kSegmentMagic, 0x3167627564676763u);
  EXPECT_EQ(kExtentMagic, 0x3174786567646763u);
}

TEST(Layout, EntryHeaderIsFrozen) {
  EXPECT_EQ(offsetof(EntryHeader, word), 0u);
  EXPECT_EQ(offsetof(EntryHeader, sequence), 8u);
  EXPECT_EQ(offsetof(EntryHeader, timestamp_ns), 16u);
  EXPECT_EQ(offsetof(EntryHeader, step), 24u);
  EXPECT_EQ(offsetof(EntryHeader, checksum), 32u);
  EXPECT_EQ(offsetof(EntryHeader, flags), 40u);
}

TEST(Layout, SlotBlockIsFrozen) {
  EXPECT_EQ(offsetof(SlotRegistration, dtype), 28u);
  EXPECT_EQ(offsetof(SlotRegistration, shape), 40u);
  EXPECT_EQ(offsetof(SlotRegistration, payload_bytes), 168u);
  EXPECT_EQ(offsetof(SlotRegistration, name), 272u);
  EXPECT_EQ(kSlotHeadOffset, 1024u);
  EXPECT_EQ(kSlotCreditOffset, 1088u);
  EXPECT_EQ(kSlotVerdictOffset, 1152u);
  EXPECT_EQ(kSlotHeadersOffset, 2240u);
  EXPECT_EQ(offsetof(SlotVerdict, text), 64u);
}

TEST(Layout, ControlLinesOfASlotAreFrozen) {
  EXPECT_EQ(offsetof(SlotHead, accepted), 0u);
  EXPECT_EQ(offsetof(SlotHead, sequence), 8u);
  EXPECT_EQ(offsetof(SlotHead, overwrote_unread), 16u);
  EXPECT_EQ(offsetof(SlotHead, last_timestamp_ns), 40u);
  EXPECT_EQ(offsetof(SlotCredit, consumed), 0u);
  EXPECT_EQ(offsetof(SlotCredit, lost), 8u);
  EXPECT_EQ(offsetof(SlotCredit, order), 24u);
  EXPECT_EQ(offsetof(SlotVerdict, version), 0u);
  EXPECT_EQ(offsetof(SlotVerdict, compared), 16u);
  EXPECT_EQ(offsetof(SlotVerdict, covered_sequence), 48u);
  EXPECT_EQ(offsetof(SlotVerdict, order), 56u);
}

TEST(Layout, LinesOfTheControlFileAreFrozen) {
  EXPECT_EQ(offsetof(ProducerLine, slot_count), 0u);
  EXPECT_EQ(offsetof(ProducerLine, activity), 16u);
  EXPECT_EQ(offsetof(ProducerLine, step), 24u);
  EXPECT_EQ(offsetof(ProducerLine, exited), 32u);
  EXPECT_EQ(offsetof(ConsumerLine, generation), 0u);
  EXPECT_EQ(offsetof(ConsumerLine, progress), 8u);
  EXPECT_EQ(offsetof(ConsumerLine, pid), 24u);
  EXPECT_EQ(offsetof(DirectoryEntry, word), 0u);
  EXPECT_EQ(offsetof(DirectoryEntry, extent), 24u);
}

TEST(Layout, ControlFileIsFrozen) {
  EXPECT_EQ(offsetof(SegmentHeader, uuid), 24u);
  EXPECT_EQ(offsetof(SegmentHeader, pid), 44u);
  EXPECT_EQ(offsetof(SegmentHeader, run_id), 120u);
  EXPECT_EQ(kProducerLineOffset, 4096u);
  EXPECT_EQ(kConsumerLineOffset, 8192u);
  EXPECT_EQ(kDirectoryOffset, 12288u);
  EXPECT_EQ(kControlBytes, 12288u + 16384u * 32u);
}

TEST(Layout, DtypeNumbersNeverChange) {
  EXPECT_EQ(static_cast<int>(Dtype::kBool), 1);
  EXPECT_EQ(static_cast<int>(Dtype::kInt64), 6);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat16), 7);
  EXPECT_EQ(static_cast<int>(Dtype::kBfloat16), 8);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat64), 10);
}

TEST(Layout, LargePayloadsArePageAlignedAndSmallOnesAlignedToALine) {
  EXPECT_EQ(ComputeGeometry(4096, 2).payload_offset % kPageBytes, 0u);
  EXPECT_EQ(ComputeGeometry(5000, 2).payload_stride_bytes, 8192u);
  EXPECT_EQ(ComputeGeometry(100, 2).payload_stride_bytes, 128u);
  EXPECT_EQ(ComputeGeometry(0, 2).payload_stride_bytes, 0u);
}

}  // namespace
}  // namespace cgdebug::layout
