// The bytes that cross a process boundary, frozen a second time: a mirror of each struct and
// literal versions. A failure here is a decision about compatibility, not a number to adjust.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

#include "proto/layout/device_stats.h"
#include "proto/layout/loss_cause.h"
#include "proto/layout/op_log_layout.h"
#include "proto/layout/recording_layout.h"
#include "proto/layout/segment_layout.h"
#include "proto/layout/slot_control.h"
#include "proto/layout/url_password.h"

namespace cgdebug::layout {
namespace {

TEST(Layout, VersionsAreDecisions) {
  EXPECT_EQ(kAbiMajor, 11);
  EXPECT_EQ(kAbiMinor, 0);
  EXPECT_EQ(kSegmentMagic, 0x3167627564676763u);
  EXPECT_EQ(kExtentMagic, 0x3174786567646763u);
}

TEST(Layout, EntryHeaderIsFrozen) {
  EXPECT_EQ(offsetof(EntryHeader, word), 0u);
  EXPECT_EQ(offsetof(EntryHeader, replay), 8u);
  EXPECT_EQ(offsetof(EntryHeader, timestamp_ns), 16u);
  EXPECT_EQ(offsetof(EntryHeader, step), 24u);
  EXPECT_EQ(offsetof(EntryHeader, checksum), 32u);
  EXPECT_EQ(offsetof(EntryHeader, flags), 40u);
  EXPECT_EQ(offsetof(EntryHeader, iteration), 44u);
}

TEST(Layout, OpLogRowIsFrozen) {
  EXPECT_EQ(sizeof(OpLogRow), 240u);
  EXPECT_EQ(offsetof(OpLogRow, nan), 8u);
  EXPECT_EQ(offsetof(OpLogRow, inf), 48u);
  EXPECT_EQ(offsetof(OpLogRow, shape), 88u);
  EXPECT_EQ(offsetof(OpLogRow, invocation), 216u);
  EXPECT_EQ(offsetof(OpLogRow, text_offset), 220u);
  EXPECT_EQ(offsetof(OpLogRow, name_bytes), 224u);
  EXPECT_EQ(offsetof(OpLogRow, dtype), 230u);
  EXPECT_EQ(offsetof(OpLogRow, dims), 232u);
  EXPECT_EQ(offsetof(OpLogRow, launch), 234u);
  EXPECT_EQ(offsetof(OpLogRow, details_bytes), 236u);
  EXPECT_EQ(kMaxOpLogRows, 1024u);
}

TEST(Layout, SlotBlockIsFrozen) {
  EXPECT_EQ(offsetof(SlotFacts, dtype), 28u);
  EXPECT_EQ(offsetof(SlotFacts, shape), 40u);
  EXPECT_EQ(offsetof(SlotFacts, payload_bytes), 168u);
  EXPECT_EQ(offsetof(SlotFacts, table_bytes), 244u);
  EXPECT_EQ(offsetof(SlotFacts, thread), 260u);
  EXPECT_EQ(offsetof(SlotFacts, stats_every), 272u);
  EXPECT_EQ(offsetof(SlotFacts, lane_reason), 276u);
  EXPECT_EQ(offsetof(SlotFacts, trigger), 277u);
  EXPECT_EQ(offsetof(SlotFacts, trigger_times), 278u);
  EXPECT_EQ(offsetof(SlotFacts, device_capacity), 280u);
  EXPECT_EQ(offsetof(SlotFacts, device_bytes), 288u);
  EXPECT_EQ(offsetof(SlotFacts, trigger_threshold), 296u);
  EXPECT_EQ(offsetof(SlotFacts, reference_order), 304u);
  EXPECT_EQ(sizeof(SlotFacts), 320u);
  const SlotRegistration r = {};
  const auto offset_of = [&r](const auto& field) {
    return reinterpret_cast<const std::byte*>(&field) - reinterpret_cast<const std::byte*>(&r);
  };
  EXPECT_EQ(offset_of(r.dtype), 28);
  EXPECT_EQ(offset_of(r.name), 320);
  EXPECT_EQ(offset_of(r.graph_label), 832);
  EXPECT_EQ(offset_of(r.shard), 1024);
  EXPECT_EQ(offset_of(r.op), 1536);
  EXPECT_EQ(offset_of(r.part), 2048);
  EXPECT_EQ(kSlotHeadOffset, 2432u);
  EXPECT_EQ(kSlotCreditOffset, 2560u);
  EXPECT_EQ(kSlotVerdictOffset, 2624u);
  EXPECT_EQ(kSlotHistoryOffset, 3648u);
  EXPECT_EQ(kSlotFailureOffset, 3776u);
  EXPECT_EQ(kSlotHeadersOffset, 3904u);
  EXPECT_EQ(offsetof(SlotVerdict, text), 136u);
}

TEST(Layout, ControlLinesOfASlotAreFrozen) {
  EXPECT_EQ(offsetof(SlotHead, accepted), 0u);
  EXPECT_EQ(offsetof(SlotHead, replay), 8u);
  EXPECT_EQ(offsetof(SlotHead, overwrote_unread), 16u);
  EXPECT_EQ(offsetof(SlotHead, last_timestamp_ns), 40u);
  EXPECT_EQ(offsetof(SlotHead, disarmed), 48u);
  EXPECT_EQ(offsetof(SlotHead, suppressed), 56u);
  EXPECT_EQ(offsetof(SlotHead, graph_replays), 64u);
  EXPECT_EQ(offsetof(SlotHead, taken), 72u);
  EXPECT_EQ(offsetof(SlotHead, reached), 80u);
  EXPECT_EQ(offsetof(SlotHead, reached_ns), 88u);
  EXPECT_EQ(offsetof(SlotHead, passed), 96u);
  EXPECT_EQ(offsetof(SlotHead, unchanged), 120u);
  EXPECT_EQ(offsetof(SlotCredit, consumed), 0u);
  EXPECT_EQ(offsetof(SlotCredit, control), 16u);
  EXPECT_EQ(offsetof(SlotCredit, order), 24u);
  EXPECT_EQ(offsetof(SlotCredit, control_from), 32u);
  EXPECT_EQ(offsetof(SlotCredit, control_until), 40u);
  EXPECT_EQ(offsetof(SlotCredit, control_expires_ns), 48u);
  EXPECT_EQ(offsetof(SlotCredit, control_threshold), 56u);
  EXPECT_EQ(offsetof(SlotVerdict, version), 0u);
  EXPECT_EQ(offsetof(SlotVerdict, numbers), 8u);
  EXPECT_EQ(sizeof(VerdictNumbers), 64u);
  EXPECT_EQ(offsetof(VerdictNumbers, compared), 8u);
  EXPECT_EQ(offsetof(VerdictNumbers, covered_replay), 40u);
  EXPECT_EQ(offsetof(VerdictNumbers, order), 48u);
  EXPECT_EQ(offsetof(SlotHistory, inf), 40u);
  EXPECT_EQ(offsetof(SlotHistory, lost), 80u);
  EXPECT_EQ(sizeof(SlotLost), 24u);
  EXPECT_EQ(offsetof(SlotFirst, serial), 24u);
  EXPECT_EQ(offsetof(SlotFirst, order), 32u);
  EXPECT_EQ(offsetof(EntryHeader, serial), 48u);
  EXPECT_EQ(offsetof(EntryHeader, reference), 56u);
}

TEST(Layout, LinesOfTheControlFileAreFrozen) {
  EXPECT_EQ(offsetof(ProducerLine, slot_count), 0u);
  EXPECT_EQ(offsetof(ProducerLine, activity), 16u);
  EXPECT_EQ(offsetof(ProducerLine, step), 24u);
  EXPECT_EQ(offsetof(ProducerLine, exited), 32u);
  EXPECT_EQ(offsetof(ProducerLine, device_activity), 48u);
  EXPECT_EQ(offsetof(ProducerLine, graphs), 56u);
  EXPECT_EQ(offsetof(ConsumerLine, generation), 0u);
  EXPECT_EQ(offsetof(ConsumerLine, progress), 8u);
  EXPECT_EQ(offsetof(ConsumerLine, pid), 24u);
  EXPECT_EQ(offsetof(ConsumerLine, room_answered), 48u);
  EXPECT_EQ(offsetof(MemoryLine, request_bytes), 8u);
  EXPECT_EQ(offsetof(MemoryLine, device_bytes), 16u);
  EXPECT_EQ(kFreezeLineOffset, 4224u);
  EXPECT_EQ(offsetof(FreezeLine, order), 8u);
  EXPECT_EQ(offsetof(FreezeLine, live), 32u);
  EXPECT_EQ(kMaxFreezeDevices, 16u);
  EXPECT_EQ(kThawLineOffset, 8384u);
  EXPECT_EQ(offsetof(ThawLine, stop), 8u);
  EXPECT_EQ(kFindingTextOffset, 12288u);
  EXPECT_EQ(offsetof(FindingText, text), 32u);
  EXPECT_EQ(kNotSeenOffset, 16384u);
  EXPECT_EQ(offsetof(NotSeenBlock, refused_calls), 8u);
  EXPECT_EQ(offsetof(NotSeenBlock, first), 16u);
  EXPECT_EQ(offsetof(NotSeenBlock, wanted_places), 24u);
  EXPECT_EQ(offsetof(NotSeenBlock, gone_order), 72u);
  EXPECT_EQ(offsetof(NotSeenBlock, malformed), 80u);
  EXPECT_EQ(offsetof(NotSeenBlock, name), 256u);
  EXPECT_EQ(offsetof(NotSeenBlock, reason), 768u);
  EXPECT_EQ(offsetof(NotSeenBlock, setting), 1792u);
  EXPECT_EQ(offsetof(DeviceWindow, checksum), 8u);
  EXPECT_EQ(offsetof(WindowRequest, order), 8u);
  EXPECT_EQ(offsetof(DirectoryEntry, word), 0u);
  EXPECT_EQ(offsetof(DirectoryEntry, extent), 24u);
  EXPECT_EQ(offsetof(DirectoryEntry, order), 28u);
}

TEST(Layout, ControlFileIsFrozen) {
  EXPECT_EQ(offsetof(SegmentHeader, uuid), 24u);
  EXPECT_EQ(offsetof(SegmentHeader, pid), 44u);
  EXPECT_EQ(offsetof(SegmentHeader, run_id), 120u);
  EXPECT_EQ(offsetof(SegmentHeader, socket), 824u);
  EXPECT_EQ(offsetof(SegmentHeader, launch), 936u);
  EXPECT_EQ(offsetof(SegmentHeader, local_rank), 944u);
  EXPECT_EQ(offsetof(SegmentHeader, local_world_size), 948u);
  EXPECT_EQ(offsetof(SegmentHeader, recordings), 1024u);
  EXPECT_EQ(kProducerLineOffset, 4096u);
  EXPECT_EQ(kConsumerLineOffset, 8192u);
  EXPECT_EQ(kRefusalsOffset, 20480u);
  EXPECT_EQ(kMemoryLineOffset, 4096u + 64u);
  EXPECT_EQ(kReaderNameOffset, 8192u + 64u);
  EXPECT_EQ(kDirectoryOffset, 20480u + 16384u * 4u);
  EXPECT_EQ(kControlBytes, 86016u + 131072u * 32u);
  EXPECT_EQ(ControlBytesFor(0), 86016u + 65536u);
  EXPECT_EQ(ControlBytesFor(2048), 86016u + 65536u);
  EXPECT_EQ(ControlBytesFor(2049), 86016u + 2 * 65536u);
  EXPECT_EQ(ControlBytesFor(kMaxSlots), kControlBytes);
}

TEST(Layout, DeviceStatsAreFrozen) {
  EXPECT_EQ(sizeof(DeviceStats), 128u);
  EXPECT_EQ(offsetof(DeviceStats, subnormal), 40u);
  EXPECT_EQ(offsetof(DeviceStats, min), 48u);
  EXPECT_EQ(offsetof(DeviceStats, l1), 88u);
  EXPECT_EQ(offsetof(DeviceStats, hash), 104u);
  EXPECT_EQ(offsetof(DeviceStats, flags), 120u);
}

TEST(Layout, ControlWordHoldsModeTriggerAndPeriod) {
  SlotControl control;
  control.mode = ControlMode::kFull;
  control.trigger = ControlTrigger::kAbsMax;
  control.every = 0xfedcba98;
  const std::uint64_t word = ControlWord(0x1234, control);
  EXPECT_EQ(word, 0x1234fedcba980303u);
  EXPECT_EQ(ControlVersion(word), 0x1234);
  EXPECT_EQ(UnpackControl(word).every, 0xfedcba98u);
  EXPECT_EQ(UnpackControl(word).trigger, ControlTrigger::kAbsMax);
  EXPECT_EQ(UnpackControl(0x0000000000000009u).mode, ControlMode::kAsRegistered);
  control.lossless = Lossless::kOff;
  EXPECT_EQ(ControlWord(0x1234, control), 0x1234fedcba982303u);
  EXPECT_EQ(UnpackControl(ControlWord(2, control)).lossless, Lossless::kOff);
  EXPECT_EQ(UnpackControl(0x0000000000003000u).lossless, Lossless::kAsRegistered);
}

TEST(Layout, WhetherASlotMayWantStatisticsIsTrueOfEachReplayThatDoes) {
  EXPECT_FALSE(MayWantStats({.record = 1}, {}));
  int wanted = 0;
  for (const Periods& periods : {Periods{}, Periods{.record = 2}, Periods{.stats = 3},
                                 Periods{.record = 2, .stats = 3, .lossless = true}}) {
    for (const ControlMode mode :
         {ControlMode::kAsRegistered, ControlMode::kOff, ControlMode::kStats, ControlMode::kFull}) {
      for (const ControlTrigger trigger : {ControlTrigger::kNone, ControlTrigger::kInf}) {
        const SlotControl control = {.mode = mode, .trigger = trigger};
        for (std::uint64_t replay = 1; replay <= 6; ++replay) {
          const Outcome outcome = Decide(periods, control, replay);
          if (outcome != Outcome::kStats && outcome != Outcome::kTriggered) continue;
          ++wanted;
          EXPECT_TRUE(MayWantStats(periods, control));
        }
      }
    }
  }
  EXPECT_GT(wanted, 20);
}

TEST(Layout, ALosslessSlotWritesEveryReplayWhateverItsPeriodsAre) {
  Periods periods{.print = 5};
  SlotControl control;
  EXPECT_EQ(Decide(periods, control, 2), Outcome::kSkip);
  control.lossless = Lossless::kOn;
  EXPECT_EQ(Decide(periods, control, 2), Outcome::kFull);
  EXPECT_EQ(Decide({.stats = 5}, control, 2), Outcome::kStats);
  EXPECT_EQ(Decide({}, control, 2), Outcome::kSkip) << "a probe without actions writes nothing";
  periods.lossless = true;
  EXPECT_EQ(Decide(periods, {}, 2), Outcome::kFull);
  control.lossless = Lossless::kOff;
  EXPECT_EQ(Decide(periods, control, 2), Outcome::kSkip);
  control = {.mode = ControlMode::kOff, .lossless = Lossless::kOn};
  EXPECT_EQ(Decide(periods, control, 2), Outcome::kSkip) << "what a person set wins";
  EXPECT_EQ(Ended(control).mode, ControlMode::kAsRegistered);
  EXPECT_EQ(Ended(control).lossless, Lossless::kOn);
}

TEST(Layout, ValuesThatStayInDeviceMemoryHaveStatisticsOnlyIfSomebodyAsksForThem) {
  SlotRegistration r = {};
  EXPECT_TRUE(MakesStatistics(r));
  r.flags = kSlotOnDevice;
  EXPECT_FALSE(MakesStatistics(r));
  r.trigger = static_cast<std::uint8_t>(ControlTrigger::kMismatch);
  EXPECT_FALSE(MakesStatistics(r));
  r.trigger = static_cast<std::uint8_t>(ControlTrigger::kNonfinite);
  EXPECT_TRUE(MakesStatistics(r));
  r.trigger = 0;
  r.stats_every = 1;
  EXPECT_TRUE(MakesStatistics(r));
}

TEST(Layout, PasswordsOfUrlsAreHiddenWhereverTheyStand) {
  EXPECT_EQ(HideUrlPasswords("get ftp://me:a@b@host/x:y@3 http://you:c@h"),
            "get ftp://me:***@host/x:y@3 http://you:***@h");
  for (const char* same : {"s3://bucket/a:b@3", "ftp://me@host:21/x", "://", "a://b:c", "x:y@z"}) {
    EXPECT_EQ(HideUrlPasswords(same), same);
  }
}

TEST(Layout, ControlHoldsForItsReplaysOnly) {
  const Periods periods{.record = 10};
  SlotControl control;
  EXPECT_EQ(Decide(periods, control, 11), Outcome::kFull);
  EXPECT_EQ(Decide(periods, control, 12), Outcome::kSkip);
  control = {.mode = ControlMode::kStats, .every = 2, .from = 5, .until = 12};
  EXPECT_EQ(Decide(periods, control, 4), Outcome::kSkip);
  EXPECT_EQ(Decide(periods, control, 5), Outcome::kStats);
  EXPECT_EQ(Decide(periods, control, 6), Outcome::kSkip);
  EXPECT_EQ(Decide(periods, control, 11), Outcome::kStats);
  EXPECT_EQ(Decide(periods, control, 13), Outcome::kSkip);
  EXPECT_EQ(Decide(periods, control, 21), Outcome::kFull);
  control = {.mode = ControlMode::kFull, .trigger = ControlTrigger::kNonfinite, .every = 1};
  EXPECT_EQ(Decide(periods, control, 3), Outcome::kTriggered);
  control = {.mode = ControlMode::kOff};
  EXPECT_EQ(Decide(periods, control, 11), Outcome::kSkip);
  EXPECT_EQ(Decide({.stats = 1}, {}, 3), Outcome::kStats);
}

TEST(Layout, RecordingFilesAreFrozen) {
  EXPECT_EQ(kRecordingMagic, 0x3167657264676763u);
  EXPECT_EQ(kRecordMagic, 0x63657263u);
  EXPECT_EQ(kRecordingMajor, 2);
  EXPECT_EQ(offsetof(FileHeader, uuid), 16u);
  EXPECT_EQ(offsetof(FileHeader, segment), 32u);
  EXPECT_EQ(offsetof(FileHeader, created_ns), 40u);
  EXPECT_EQ(offsetof(FileHeader, first_number), 48u);
  EXPECT_EQ(offsetof(FileHeader, crc32c), 4092u);
  EXPECT_EQ(offsetof(RecordHeader, crc32c), 4u);
  EXPECT_EQ(offsetof(RecordHeader, type), 8u);
  EXPECT_EQ(offsetof(RecordHeader, meta_bytes), 12u);
  EXPECT_EQ(offsetof(RecordHeader, payload_bytes), 16u);
  EXPECT_EQ(offsetof(RecordHeader, payload_hash), 24u);
  EXPECT_EQ(offsetof(RecordHeader, number), 32u);
  EXPECT_EQ(offsetof(RecordHeader, offset), 40u);
  EXPECT_EQ(offsetof(RecordHeader, segment), 48u);
  EXPECT_EQ(offsetof(RecordHeader, tag), 52u);
  EXPECT_EQ(offsetof(IndexRow, ordinal), 8u);
  EXPECT_EQ(offsetof(IndexRow, offset), 24u);
  EXPECT_EQ(static_cast<int>(RecordType::kSession), 1);
  EXPECT_EQ(static_cast<int>(RecordType::kClose), 9);
  EXPECT_EQ(kEndRecordBytes, 256u);
}

TEST(Layout, LargePayloadsInAFileArePageAlignedAndSmallOnesAlignedToALine) {
  EXPECT_EQ(PayloadOffset(4096, 100, 262144), 8192u);
  EXPECT_EQ(PayloadOffset(4096, 100, 262143), 4096u + 192u);
  EXPECT_EQ(NextRecord(4096, 0, 0), 4096u + 64u);
  EXPECT_EQ(NextRecord(4096, 100, 262145), 8192u + 262144u + 64u);
}

TEST(Layout, DtypeNumbersNeverChange) {
  EXPECT_EQ(static_cast<int>(Dtype::kBool), 1);
  EXPECT_EQ(static_cast<int>(Dtype::kInt64), 6);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat16), 7);
  EXPECT_EQ(static_cast<int>(Dtype::kBfloat16), 8);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat64), 10);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat8E4m3fn), 11);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat8E5m2), 12);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat8E4m3fnuz), 14);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat8E5m2fnuz), 15);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat8E8m0fnu), 16);
  EXPECT_EQ(static_cast<int>(Dtype::kFloat4E2m1fnX2), 17);
}

TEST(Layout, EveryLossCauseHasANumberThatNeverChangesAndAText) {
  for (std::size_t i = 0; i < kLossCauses.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(kLossCauses[i].cause), i + 1);
    EXPECT_EQ(ToText(kLossCauses[i].cause), kLossCauses[i].text);
    EXPECT_FALSE(kLossCauses[i].text.empty());
  }
  EXPECT_EQ(static_cast<int>(LossCause::kUnread), 13);
  EXPECT_EQ(kLossCauses.size(), 15u);
}

TEST(Layout, LargePayloadsArePageAlignedAndSmallOnesAlignedToALine) {
  EXPECT_EQ(ComputeGeometry(4096, 2).payload_offset % kPageBytes, 0u);
  EXPECT_EQ(ComputeGeometry(5000, 2).payload_stride_bytes, 8192u);
  EXPECT_EQ(ComputeGeometry(100, 2).payload_stride_bytes, 128u);
  EXPECT_EQ(ComputeGeometry(0, 2).payload_stride_bytes, 0u);
  EXPECT_EQ(ComputeGeometry(64, 1).block_bytes, kPageBytes);
  EXPECT_EQ(ComputeGeometry(64, 2).block_bytes, 2 * kPageBytes);
  EXPECT_EQ(ComputeGeometry(64, 33).block_bytes, 2 * kPageBytes);
}

TEST(Layout, ASlotOnTheDeviceHasRoomForStatisticsAndOneTensorHoweverLongItsRings) {
  SlotRegistration r = {};
  r.payload_bytes = 1 << 20;
  r.capacity = 64;
  r.flags = kSlotOnDevice;
  const SlotGeometry geometry = GeometryOf(r);
  EXPECT_EQ(geometry.payload_stride_bytes, kStatsBytes);
  EXPECT_EQ(geometry.window_offset % kCacheLineBytes, 0u);
  EXPECT_GE(geometry.block_bytes, geometry.window_offset + kWindowPayloadOffset + r.payload_bytes);
  EXPECT_LT(geometry.block_bytes, r.payload_bytes + 8 * kPageBytes);
  EXPECT_EQ(OldestOnDevice(3, 4), 1u);
  EXPECT_EQ(OldestOnDevice(9, 4), 6u);
}

}  // namespace
}  // namespace cgdebug::layout
