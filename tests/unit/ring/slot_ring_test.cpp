#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "libprobe/ring/control.h"
#include "libprobe/ring/credit.h"
#include "libprobe/ring/payload_checksum.h"
#include "libprobe/ring/shared_copy.h"
#include "tests/support/ring/body_ring.h"
#include "tests/support/ring/device_ring_writer.h"
#include "tests/support/ring/ring_fixture.h"
#include "tests/support/ring/skipping_ring.h"

namespace cgdebug::ring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SlotRing : public ::testing::Test {
 protected:
  ~SlotRing() override { segment_.Close(/*unlink=*/true); }

  void Open(const layout::SlotRegistration& registration) {
    slot_ = test::PublishSlot(segment_, registration);
    writer_.emplace(slot_.block.data, segment_.producer(), segment_.gate());
    reader_.emplace(segment_.OpenSlot(slot_.index, slot_.block));
  }
  // A slot of 40 numbers that does not send unchanged ones again.
  void OpenSkipping(std::uint32_t capacity) {
    layout::SlotRegistration registration = test::MakeSlot("a", 40, capacity);
    test::SkipUnchanged(&registration);
    Open(registration);
    skipping_.emplace(slot_.block.data, segment_.producer());
  }
  layout::EntryHeader* Header(std::uint64_t ordinal) {
    auto* headers = reinterpret_cast<layout::EntryHeader*>(slot_.block.data +
                                                           reader_->registration().headers_offset);
    return &headers[(ordinal - 1) % reader_->registration().capacity];
  }

  SegmentWriter segment_{Identity{}};
  test::Slot slot_;
  std::optional<SlotRingWriter> writer_;
  std::optional<test::SkippingWriter> skipping_;
  std::optional<SlotRingReader> reader_;
  Entry entry_;
};

TEST(Serial, OfTheCpuAscendsAndIsThatOfNoGpu) {
  std::uint64_t last = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t serial = NextSerial();
    EXPECT_GT(serial, last);
    EXPECT_EQ(serial % layout::kSerialTakers, 0u);
    last = serial;
  }
  for (int device = 0; device < 100; ++device) {
    const std::uint64_t of_gpu = layout::SerialAt(last, layout::SerialTakerOf(device));
    EXPECT_NE(of_gpu % layout::kSerialTakers, 0u);
    EXPECT_EQ(of_gpu / layout::kSerialTakers, last / layout::kSerialTakers);
  }
}

TEST_F(SlotRing, OfCallsAnEntryHasTheNumberOfTheCallAndItsPlaceInIt) {
  Open(test::MakeSlot("a", 3, 8));
  for (const std::uint64_t call : {3, 7, 7, 41}) {
    ASSERT_TRUE(writer_->BeginInCall(NextSerial(), call));
    writer_->Commit(0, static_cast<std::int64_t>(call) - 1);
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> read;
  for (std::uint64_t ordinal = 1; ordinal <= reader_->accepted(); ++ordinal) {
    ASSERT_EQ(reader_->Read(ordinal, &entry_), ReadStatus::kOk);
    read.emplace_back(entry_.replay, entry_.iteration);
    EXPECT_EQ(entry_.step, static_cast<std::int64_t>(entry_.replay) - 1);
  }
  EXPECT_THAT(read,
              ElementsAre(std::pair(3, 0), std::pair(7, 0), std::pair(7, 1), std::pair(41, 0)));
  EXPECT_EQ(reader_->replay(), 41u);
}

TEST_F(SlotRing, ReaderGetsWhatTheWriterCommitted) {
  Open(test::MakeSlot("a", 3, 4));
  test::WriteNumbers(*writer_, 10);
  ASSERT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  EXPECT_THAT(test::Numbers(entry_), ElementsAre(10, 11, 12));
  EXPECT_EQ(entry_.replay, 1u);
  EXPECT_EQ(entry_.timestamp_ns, 10);
  EXPECT_EQ(entry_.step, -1);
}

TEST_F(SlotRing, NothingIsReadBeforeItIsCommitted) {
  Open(test::MakeSlot("a", 3, 4));
  ASSERT_TRUE(writer_->Begin());
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kNone);
  EXPECT_EQ(reader_->accepted(), 0u);
  writer_->Commit(1);
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
}

TEST_F(SlotRing, KeepsTheNewestCapacityEntriesAndNamesTheOldest) {
  Open(test::MakeSlot("a", 1, 4));
  for (int i = 1; i <= 10; ++i) test::WriteNumbers(*writer_, i);
  EXPECT_EQ(reader_->accepted(), 10u);
  EXPECT_EQ(reader_->oldest(10), 7u);
  EXPECT_EQ(reader_->Read(6, &entry_), ReadStatus::kOverwritten);
  for (std::uint64_t i = 7; i <= 10; ++i) {
    ASSERT_EQ(reader_->Read(i, &entry_), ReadStatus::kOk);
    EXPECT_EQ(test::Numbers(entry_)[0], static_cast<int>(i));
    EXPECT_EQ(entry_.replay, i);
  }
}

TEST_F(SlotRing, ReaderRejectsAnEntryThatIsBeingOverwritten) {
  Open(test::MakeSlot("a", 1, 1));
  test::WriteNumbers(*writer_, 1);
  ASSERT_TRUE(writer_->Begin());
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kOverwritten);
}

TEST_F(SlotRing, ReplaysThatNoActionWantsHaveANumberAndNoEntry) {
  auto registration = test::MakeSlot("a", 1, 8);
  registration.record_every = 3;
  registration.actions |= layout::kActionPrint;
  registration.print_every = 5;
  Open(registration);
  for (int i = 1; i <= 7; ++i) test::WriteNumbers(*writer_, i);
  EXPECT_EQ(reader_->replay(), 7u);
  ASSERT_EQ(reader_->accepted(), 4u);  // replays 1, 4, 6, 7
  std::vector<std::uint64_t> replays;
  for (std::uint64_t i = 1; i <= 4; ++i) {
    ASSERT_EQ(reader_->Read(i, &entry_), ReadStatus::kOk);
    replays.push_back(entry_.replay);
  }
  EXPECT_THAT(replays, ElementsAre(1, 4, 6, 7));
}

TEST_F(SlotRing, AReplayIsFoundByItsHeaderAsLongAsTheRingHoldsIt) {
  auto registration = test::MakeSlot("a", 1, 3);
  registration.record_every = 2;
  Open(registration);
  EXPECT_EQ(reader_->FindReplay(1), 0u);
  for (int i = 1; i <= 9; ++i) test::WriteNumbers(*writer_, i);  // 1, 3, 5, 7, 9 have entries
  EXPECT_EQ(reader_->FindReplay(3), 0u) << "overwritten";
  EXPECT_EQ(reader_->FindReplay(5), 3u);
  EXPECT_EQ(reader_->FindReplay(6), 0u) << "nobody wanted it";
  EXPECT_EQ(reader_->FindReplay(9), 5u);
  EXPECT_EQ(reader_->FindReplay(10), 0u);
  Header(4)->word = layout::EntryWord(7, layout::EntryState::kFilling);
  EXPECT_EQ(reader_->FindReplay(7), 0u) << "it is being overwritten";
  EXPECT_EQ(reader_->FindReplay(5), 3u);
}

TEST_F(SlotRing, AnIterationIsFoundByItsReplayAndNumberAndWithoutANumberTheLast) {
  auto registration = test::MakeSlot("a", 1, 16);
  test::PutIntoBody(&registration);
  Open(registration);
  test::BodyWriter body(slot_.block.data, segment_.producer());
  for (const int runs : {1, 0, 7, 0}) {
    body.BeginReplay();
    for (std::int32_t i = 0; i < runs; ++i) body.Run(std::as_bytes(std::span(&i, 1)));
  }
  EXPECT_EQ(reader_->FindReplay(1), 1u);
  EXPECT_EQ(reader_->FindReplay(2), 0u) << "the body did not run";
  EXPECT_EQ(reader_->FindReplay(3), 8u);
  EXPECT_EQ(reader_->FindReplay(3, 0), 2u);
  EXPECT_EQ(reader_->FindReplay(3, 6), 8u);
  EXPECT_EQ(reader_->FindReplay(3, 7), 0u);
  EXPECT_EQ(reader_->FindReplay(1, 1), 0u);
  ASSERT_EQ(reader_->Read(5, &entry_), ReadStatus::kOk);
  EXPECT_EQ(entry_.replay, 3u);
  EXPECT_EQ(entry_.iteration, 3u);
  EXPECT_THAT(test::Numbers(entry_), ElementsAre(3));
  EXPECT_EQ(reader_->head().taken, 2u);
  EXPECT_EQ(reader_->head().graph_replays, 4u);
  Header(5)->iteration = 4;
  EXPECT_EQ(reader_->Read(5, &entry_), ReadStatus::kDamaged) << "the checksum covers it";
}

TEST_F(SlotRing, AValueOnTheDeviceIsAbsentUntilItCameThroughTheWindow) {
  auto registration = test::MakeSlot("a", 40, 16);
  test::PutOnDevice(&registration, 2);
  Open(registration);
  test::DeviceRingWriter device(slot_.block.data, segment_.producer());
  for (std::int32_t replay = 1; replay <= 4; ++replay) device.Run(100 * replay);
  ASSERT_EQ(reader_->Read(3, &entry_), ReadStatus::kOk);
  EXPECT_EQ(entry_.replay, 3u);
  EXPECT_NE(entry_.flags & layout::kEntryOnDevice, 0u);
  EXPECT_TRUE(entry_.payload.empty());

  reader_->Request(3, /*every=*/false);
  device.Serve(4);
  ASSERT_EQ(reader_->Read(3, &entry_), ReadStatus::kOk);
  EXPECT_EQ(entry_.flags & layout::kEntryOnDevice, 0u);
  EXPECT_EQ(test::Numbers(entry_)[39], 339);
  ASSERT_EQ(reader_->Read(4, &entry_), ReadStatus::kOk);
  EXPECT_TRUE(entry_.payload.empty()) << "the window holds another one";

  reader_->Request(2, /*every=*/false);
  device.Serve(4);
  EXPECT_EQ(reader_->refused(), 2u);
}

TEST_F(SlotRing, ADamagedWindowHoldsNoValue) {
  auto registration = test::MakeSlot("a", 40, 16);
  test::PutOnDevice(&registration, 2);
  Open(registration);
  test::DeviceRingWriter device(slot_.block.data, segment_.producer());
  device.Run(100);
  device.Send(1);
  device.window_bytes()[layout::kWindowPayloadOffset + 7] ^= std::byte{1};
  ASSERT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  EXPECT_TRUE(entry_.payload.empty());
  EXPECT_NE(entry_.flags & layout::kEntryOnDevice, 0u);
}

TEST_F(SlotRing, AWindowOfTheBlocksLastSlotHoldsNoValue) {
  auto registration = test::MakeSlot("a", 40, 16);
  test::PutOnDevice(&registration, 2);
  Open(registration);
  test::DeviceRingWriter device(slot_.block.data, segment_.producer());
  device.Run(100);
  device.Send(1);
  ASSERT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  EXPECT_EQ(test::Numbers(entry_)[0], 100);
  registration.order = 2;
  std::memcpy(slot_.block.data, &registration, sizeof(registration));
  reader_.emplace(segment_.OpenSlot(slot_.index, slot_.block));
  ASSERT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  EXPECT_TRUE(entry_.payload.empty());
}

TEST_F(SlotRing, AFreezeIsToldOnceAndEndsWhenTheReaderSaysSo) {
  Open(test::MakeSlot("a", 1, 4));
  std::string reason;
  const auto view = SegmentView::Attach(segment_.name(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  EXPECT_EQ(view->freezes().Last(1).serial, 0u);
  auto* lines =
      reinterpret_cast<layout::FreezeLine*>(segment_.mapping(0).data + layout::kFreezeLineOffset);
  lines[0] = {.serial = 70, .order = 2, .replay = 6, .trigger = 2, .live = 1, .reserved = {}};
  lines[1] = {.serial = 77, .order = 1, .replay = 5, .trigger = 9, .live = 0, .reserved = {}};
  EXPECT_EQ(view->freezes().Last(0).serial, 70u);
  EXPECT_EQ(view->freezes().Last(0).trigger, layout::ControlTrigger::kInf);
  EXPECT_TRUE(view->freezes().Last(0).live);
  EXPECT_EQ(view->freezes().Last(1).serial, 77u);
  EXPECT_EQ(view->freezes().Last(1).replay, 5u);
  EXPECT_EQ(view->freezes().Last(1).trigger, layout::ControlTrigger::kNone) << "no such trigger";
  EXPECT_FALSE(view->freezes().IsThawed(1, 77));
  const auto* thaws =
      reinterpret_cast<const layout::ThawLine*>(segment_.mapping(0).data + layout::kThawLineOffset);
  view->freezes().Stop(1, 99);
  EXPECT_EQ(thaws[1].stop, 99u);
  view->freezes().Thaw(1, 77);
  EXPECT_TRUE(view->freezes().IsThawed(1, 77));
  EXPECT_EQ(thaws[1].stop, 0u) << "what was asked for is over with it";
  EXPECT_FALSE(view->freezes().IsThawed(0, 70)) << "another device";
}

// The rings that it stopped would stand still with nobody to let them go on.
TEST_F(SlotRing, WhatADaemonAskedOfRingsEndsWithTheDaemon) {
  Open(test::MakeSlot("a", 1, 4));
  std::string reason;
  const auto view = SegmentView::Attach(segment_.name(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  const auto* thaws =
      reinterpret_cast<const layout::ThawLine*>(segment_.mapping(0).data + layout::kThawLineOffset);
  view->freezes().Stop(15, 98);
  view->Leave();
  EXPECT_EQ(thaws[15].stop, 0u);
  view->freezes().Stop(15, 99);  // this one is killed
  ASSERT_TRUE(view->BecomeReader());
  EXPECT_EQ(thaws[15].stop, 0u);
}

TEST_F(SlotRing, AnEarlierFindingReplacesALaterOneAndNotTheOtherWayRound) {
  Open(test::MakeSlot("a", 1, 4));
  std::string reason;
  const auto view = SegmentView::Attach(segment_.name(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  const auto& shared = reinterpret_cast<const layout::FindingText*>(segment_.mapping(0).data +
                                                                    layout::kFindingTextOffset)[1];
  const auto text = [&] { return std::string(shared.text, shared.bytes); };
  EXPECT_EQ(shared.version, 0u);
  view->findings().Set(layout::FindingKind::kInf, {10, 5}, "later");
  EXPECT_EQ(text(), "later");
  view->findings().Set(layout::FindingKind::kInf, {10, 6}, "behind it in the graph");
  EXPECT_EQ(text(), "later");
  view->findings().Set(layout::FindingKind::kInf, {9, 7}, std::string(2000, 'x'));
  EXPECT_EQ(text(), std::string(sizeof(shared.text), 'x'));
  EXPECT_EQ(shared.version % 2, 0u);
  view->findings().Set(layout::FindingKind::kInf, {0, 1},
                       "an earlier daemon's, at an unknown time");
  EXPECT_EQ(text(), std::string(sizeof(shared.text), 'x'));
}

TEST_F(SlotRing, AFindingInARowOfAnOpLogGivesWayToOneElsewhere) {
  Open(test::MakeSlot("a", 1, 4));
  std::string reason;
  const auto view = SegmentView::Attach(segment_.name(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  const auto text = [&] { return view->findings().Read(layout::FindingKind::kNan); };
  view->findings().Set(layout::FindingKind::kNan, {10, 5, true}, "of a row");
  view->findings().Set(layout::FindingKind::kNan, {20, 5, false}, "of a probe");
  EXPECT_EQ(text(), "of a probe");
  view->findings().Set(layout::FindingKind::kNan, {9, 5, true}, "of an earlier row");
  EXPECT_EQ(text(), "of a probe") << "a row may have an excuse";
  view->findings().Set(layout::FindingKind::kNan, {19, 5, false}, "of an earlier probe");
  EXPECT_EQ(text(), "of an earlier probe");
}

TEST_F(SlotRing, AFindingThatADaemonDiedWritingIsWrittenByTheNext) {
  Open(test::MakeSlot("a", 1, 4));
  std::string reason;
  const auto view = SegmentView::Attach(segment_.name(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  auto& shared = reinterpret_cast<layout::FindingText*>(segment_.mapping(0).data +
                                                        layout::kFindingTextOffset)[0];
  view->findings().Set(layout::FindingKind::kNan, {10, 5}, "half wr");
  ++shared.version;
  view->findings().Set(layout::FindingKind::kNan, {10, 5}, "whole");
  EXPECT_EQ(std::string(shared.text, shared.bytes), "whole");
  EXPECT_EQ(shared.version % 2, 0u);
  EXPECT_EQ(view->findings().Read(layout::FindingKind::kNan), "whole")
      << "the next daemon reads it";
  EXPECT_EQ(view->findings().Read(layout::FindingKind::kReplica), "");
  shared.bytes = UINT32_MAX;
  EXPECT_EQ(view->findings().Read(layout::FindingKind::kNan).size(), sizeof(shared.text));
}

TEST_F(SlotRing, EmptyTensorsAreSnapshotsToo) {
  Open(test::MakeSlot("a", 0, 2));
  test::WriteNumbers(*writer_, 1);
  ASSERT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  EXPECT_TRUE(entry_.payload.empty());
}

TEST_F(SlotRing, AWaitingWriterOverwritesAtOnceWhenNoDaemonIsAttached) {
  Open(test::MakeSlot("a", 1, 2, layout::Policy::kWait));
  for (int i = 1; i <= 5; ++i) test::WriteNumbers(*writer_, i);
  const layout::SlotHead head = reader_->head();
  EXPECT_EQ(head.accepted, 5u);
  EXPECT_EQ(head.overwrote_unread, 3u);
}

TEST_F(SlotRing, VerdictComesBackWholeAndIsCut) {
  Open(test::MakeSlot("a", 1, 2));
  Verdict verdict;
  verdict.state = layout::VerdictState::kFail;
  verdict.compared = 5;
  verdict.mismatched = 2;
  verdict.first_failed_replay = 3;
  verdict.text = std::string(2 * layout::kVerdictTextBytes, 'x');
  reader_->SetVerdict(verdict);
  const Verdict read = reader_->verdict();
  EXPECT_EQ(read.state, layout::VerdictState::kFail);
  EXPECT_EQ(read.compared, 5u);
  EXPECT_EQ(read.mismatched, 2u);
  EXPECT_EQ(read.first_failed_replay, 3u);
  EXPECT_EQ(read.text.size(), layout::kVerdictTextBytes);
}

TEST_F(SlotRing, TheFirstNonfinitesComeBackAndAreNotThoseOfTheBlocksNextSlot) {
  Open(test::MakeSlot("a", 1, 2));
  EXPECT_EQ(reader_->firsts().nan.replay, 0u);
  reader_->SetFirsts({.nan = {7, 3, 2}});
  EXPECT_EQ(reader_->firsts().nan.replay, 7u);
  EXPECT_EQ(reader_->firsts().nan.step, 3);
  EXPECT_EQ(reader_->firsts().nan.count, 2u);
  EXPECT_EQ(reader_->firsts().inf.replay, 0u);
  segment_.Release(slot_.index, slot_.block);
  layout::SlotRegistration next = test::MakeSlot("b", 1, 2);
  next.order = 2;
  Open(next);
  EXPECT_EQ(reader_->firsts().nan.replay, 0u);
}

TEST_F(SlotRing, AReusedBlockIsNoLongerReadable) {
  Open(test::MakeSlot("a", 1, 2));
  test::WriteNumbers(*writer_, 1);
  segment_.Retire(slot_.index);
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk) << "retired: what is there stays readable";
  EXPECT_TRUE(reader_->retired());
  segment_.Release(slot_.index, slot_.block);
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kGone);
  const test::Slot again = test::PublishSlot(segment_, test::MakeSlot("b", 1, 2));
  EXPECT_EQ(again.index, slot_.index);
  EXPECT_EQ(again.block.offset, slot_.block.offset);
  EXPECT_FALSE(reader_->valid()) << "same place, another generation";
}

// --- credit and verdict --------------------------------------------------------------------------

TEST_F(SlotRing, ACreditOfABlocksLastSlotDoesNotPass) {
  Open(test::MakeSlot("a", 3, 4));
  auto* credit =
      reinterpret_cast<layout::SlotCredit*>(slot_.block.data + layout::kSlotCreditOffset);
  auto* history =
      reinterpret_cast<layout::SlotHistory*>(slot_.block.data + layout::kSlotHistoryOffset);
  StoreCredit(*credit, *history, /*order=*/99, 7, 5);
  EXPECT_EQ(reader_->consumed(), 0u);
  reader_->SetControl({.mode = layout::ControlMode::kOff});
  EXPECT_EQ(reader_->consumed(), 0u) << "nor with this slot's first control";
  StoreRelaxed(credit->consumed, std::uint64_t{9});
  EXPECT_EQ(reader_->credit().lost, 0u);
}

// The state that a killed daemon leaves after any of its stores.
TEST_F(SlotRing, ACreditThatIsHalfWrittenIsTheOneBeforeIt) {
  Open(test::MakeSlot("a", 3, 4));
  auto* credit =
      reinterpret_cast<layout::SlotCredit*>(slot_.block.data + layout::kSlotCreditOffset);
  auto* history =
      reinterpret_cast<layout::SlotHistory*>(slot_.block.data + layout::kSlotHistoryOffset);
  Credit before;
  for (const Credit next : {Credit{3, 1}, Credit{8, 4}, Credit{9, 5}, Credit{20, 7}}) {
    layout::SlotLost old[2], now[2];
    std::memcpy(old, history->lost, sizeof(old));
    reader_->SetConsumed(next.consumed, next.lost);
    std::memcpy(now, history->lost, sizeof(now));
    credit->consumed = before.consumed;
    const auto* old_words = reinterpret_cast<const std::uint64_t*>(old);
    const auto* new_words = reinterpret_cast<const std::uint64_t*>(now);
    auto* words = reinterpret_cast<std::uint64_t*>(history->lost);
    for (unsigned stored = 0; stored < 1u << 6; ++stored) {
      for (unsigned i = 0; i < 6; ++i) words[i] = (stored >> i & 1 ? new_words : old_words)[i];
      EXPECT_EQ(reader_->credit().consumed, before.consumed);
      EXPECT_EQ(reader_->credit().lost, before.lost) << "stores " << stored;
    }
    credit->consumed = next.consumed;
    EXPECT_EQ(reader_->credit().consumed, next.consumed);
    EXPECT_EQ(reader_->credit().lost, next.lost);
    before = next;
  }
}

TEST_F(SlotRing, NoMoreIsLostThanWasConsumed) {
  Open(test::MakeSlot("a", 3, 4));
  reader_->SetConsumed(2, 9);
  EXPECT_EQ(reader_->credit().consumed, 2u);
  EXPECT_EQ(reader_->credit().lost, 2u);
}

TEST_F(SlotRing, AWriterOverwritesWhatWasConsumedWithoutCountingIt) {
  Open(test::MakeSlot("a", 1, 2, layout::Policy::kWait));
  for (int i = 1; i <= 2; ++i) test::WriteNumbers(*writer_, i);
  reader_->SetConsumed(1, 0);
  test::WriteNumbers(*writer_, 3);
  EXPECT_EQ(reader_->head().overwrote_unread, 0u);
  test::WriteNumbers(*writer_, 4);
  EXPECT_EQ(reader_->head().overwrote_unread, 1u);
}

TEST_F(SlotRing, AVerdictOfABlocksLastSlotDoesNotPass) {
  Open(test::MakeSlot("a", 1, 2));
  reader_->SetVerdict({.state = layout::VerdictState::kPass, .compared = 5, .text = {}});
  const test::Slot first = slot_;
  const Verdict verdict = reader_->verdict();
  EXPECT_EQ(verdict.compared, 5u);
  segment_.Release(first.index, first.block);
  layout::SlotRegistration next = test::MakeSlot("b", 1, 2);
  next.order = 2;
  Open(next);
  reader_->SetVerdict(verdict);
  auto* shared =
      reinterpret_cast<layout::SlotVerdict*>(slot_.block.data + layout::kSlotVerdictOffset);
  StoreRelaxed(shared->numbers[shared->version % 2].order, std::uint64_t{1});
  EXPECT_EQ(reader_->verdict().state, layout::VerdictState::kNone);
  EXPECT_EQ(reader_->verdict().compared, 0u);
}

// What a writer leaves that is killed between any two of its stores.
TEST_F(SlotRing, AVerdictThatNobodyFinishedWritingLeavesTheOneBefore) {
  using State = layout::VerdictState;
  Open(test::MakeSlot("a", 1, 2));
  reader_->SetVerdict({.state = State::kError, .compared = 5, .lost = 1, .text = "one"});
  auto* shared =
      reinterpret_cast<layout::SlotVerdict*>(slot_.block.data + layout::kSlotVerdictOffset);
  const layout::SlotVerdict before = *shared;
  reader_->SetVerdict({.state = State::kError, .compared = 6, .lost = 2, .text = "two"});
  const layout::SlotVerdict after = *shared;
  for (std::size_t stored = 0; stored < 4; ++stored) {  // bytes of the text
    *shared = before;
    std::memcpy(shared->text, after.text, stored);
    const Verdict verdict = reader_->verdict();
    EXPECT_EQ(verdict.state, State::kError);
    EXPECT_EQ(verdict.compared, 5u);
    EXPECT_EQ(verdict.lost, 1u);
    EXPECT_EQ(verdict.text, stored == 0 ? "one" : "");
  }
  // The next writer says it again.
  reader_->SetVerdict({.state = State::kError, .compared = 5, .lost = 1, .text = "one"});
  EXPECT_EQ(reader_->verdict().text, "one");
  *shared = after;
  shared->version = before.version;
  EXPECT_EQ(reader_->verdict().compared, 5u);
  shared->version = after.version;
  EXPECT_EQ(reader_->verdict().compared, 6u);
  EXPECT_EQ(reader_->verdict().text, "two");
}

// --- live control ------------------------------------------------------------------------------

TEST_F(SlotRing, AControlTurnsTheSlotOffAndOnBetweenReplays) {
  Open(test::MakeSlot("a", 3, 4));
  test::WriteNumbers(*writer_, 1);
  reader_->SetConsumed(1, 0);
  reader_->SetControl({.mode = layout::ControlMode::kOff});
  test::WriteNumbers(*writer_, 2);
  test::WriteNumbers(*writer_, 3);
  EXPECT_EQ(reader_->accepted(), 1u);
  EXPECT_EQ(reader_->replay(), 3u);
  EXPECT_EQ(reader_->head().suppressed, 2u);
  reader_->SetControl({});
  test::WriteNumbers(*writer_, 4);
  ASSERT_EQ(reader_->Read(2, &entry_), ReadStatus::kOk);
  EXPECT_EQ(entry_.replay, 4u);
  EXPECT_EQ(entry_.flags, 0u);
}

TEST_F(SlotRing, OnlyReplaysThatWereWantedCountAsKeptBack) {
  auto registration = test::MakeSlot("a", 3, 4);
  registration.record_every = 3;
  Open(registration);
  reader_->SetControl({.mode = layout::ControlMode::kOff});
  for (int i = 1; i <= 6; ++i) test::WriteNumbers(*writer_, i);
  EXPECT_EQ(reader_->head().suppressed, 2u) << "replays 1 and 4";
}

TEST_F(SlotRing, AControlEndsWithItsReplaysAndWithItsTime) {
  Open(test::MakeSlot("a", 3, 16));
  reader_->SetControl({.mode = layout::ControlMode::kOff, .from = 2, .until = 3});
  for (int i = 1; i <= 4; ++i) test::WriteNumbers(*writer_, i);
  EXPECT_EQ(reader_->accepted(), 2u) << "replays 1 and 4";
  reader_->SetControl({.mode = layout::ControlMode::kOff, .expires_ns = 1});
  test::WriteNumbers(*writer_, 5);
  EXPECT_EQ(reader_->accepted(), 3u) << "it expired in 1970";
}

TEST_F(SlotRing, AControlAsksForReplaysThatNoActionWants) {
  auto registration = test::MakeSlot("a", 3, 4);
  registration.record_every = 100;
  Open(registration);
  for (int i = 1; i <= 2; ++i) test::WriteNumbers(*writer_, i);
  reader_->SetControl({.mode = layout::ControlMode::kFull, .every = 1});
  test::WriteNumbers(*writer_, 3);
  ASSERT_EQ(reader_->Read(2, &entry_), ReadStatus::kOk);
  EXPECT_EQ(entry_.replay, 3u);
  EXPECT_EQ(entry_.flags, layout::kEntryForced);
}

TEST_F(SlotRing, AWriterThatComputesNothingMarksValuesThatAreNotWanted) {
  Open(test::MakeSlot("a", 3, 4));
  reader_->SetControl({.mode = layout::ControlMode::kStats});
  test::WriteNumbers(*writer_, 1);
  ASSERT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  EXPECT_EQ(entry_.flags, layout::kEntryForced | layout::kEntryDropValues);
  reader_->SetControl(
      {.mode = layout::ControlMode::kFull, .trigger = layout::ControlTrigger::kNonfinite});
  test::WriteNumbers(*writer_, 2);
  ASSERT_EQ(reader_->Read(2, &entry_), ReadStatus::kOk);
  EXPECT_EQ(entry_.flags, layout::kEntryForced | layout::kEntryTriggered);
}

TEST_F(SlotRing, AControlThatIsBeingWrittenChangesNothing) {
  Open(test::MakeSlot("a", 3, 4));
  reader_->SetControl({.mode = layout::ControlMode::kOff});
  test::WriteNumbers(*writer_, 1);
  auto* credit =
      reinterpret_cast<layout::SlotCredit*>(slot_.block.data + layout::kSlotCreditOffset);
  StoreRelaxed(credit->control, layout::ControlWord(7, {}));
  test::WriteNumbers(*writer_, 2);
  EXPECT_EQ(reader_->accepted(), 0u) << "still off";
}

TEST_F(SlotRing, TheControlOfABlocksLastSlotDoesNotPass) {
  Open(test::MakeSlot("a", 3, 4));
  auto* credit =
      reinterpret_cast<layout::SlotCredit*>(slot_.block.data + layout::kSlotCreditOffset);
  StoreControl(*credit, /*order=*/99, {.mode = layout::ControlMode::kOff});
  test::WriteNumbers(*writer_, 1);
  EXPECT_EQ(reader_->accepted(), 1u);
  reader_->SetConsumed(1, 0);
  test::WriteNumbers(*writer_, 2);
  EXPECT_EQ(reader_->accepted(), 2u) << "nor with this slot's first credit";
}

// --- what a GPU writes -------------------------------------------------------------------------

TEST_F(SlotRing, AHeadBeyondWhatEntriesCanTellIsCutOff) {
  Open(test::MakeSlot("a", 3, 4));
  test::WriteNumbers(*writer_, 1);
  auto* head = reinterpret_cast<layout::SlotHead*>(slot_.block.data + layout::kSlotHeadOffset);
  StoreRelaxed(head->accepted, ~std::uint64_t{0});
  EXPECT_EQ(reader_->accepted(), layout::kMaxOrdinal);
  EXPECT_EQ(reader_->head().accepted, layout::kMaxOrdinal);
}

TEST_F(SlotRing, BytesThatAreNotThoseSummedUpAreRefused) {
  Open(test::MakeSlot("a", 3, 4));
  test::WriteNumbers(*writer_, 5);
  std::byte* payload = slot_.block.data + reader_->registration().payload_offset;
  test::Seal(slot_.block.data, 1);
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  payload[4] ^= std::byte{1};
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
}

TEST_F(SlotRing, AHeaderThatIsNotTheOneSummedUpIsRefused) {
  Open(test::MakeSlot("a", 3, 4));
  test::WriteNumbers(*writer_, 5);
  test::Seal(slot_.block.data, 1);
  const layout::EntryHeader whole = *Header(1);
  ASSERT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  Header(1)->replay = 2;
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
  *Header(1) = whole;
  Header(1)->timestamp_ns += 1;
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
  *Header(1) = whole;
  Header(1)->step = 7;
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
  *Header(1) = whole;
  Header(1)->serial += 1;
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
  *Header(1) = whole;
  Header(1)->flags |= layout::kEntryForced;
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
  *Header(1) = whole;
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
}

TEST_F(SlotRing, AnEntryOfTheDirectLaneWhoseFlagsAreNotThereIsRefused) {
  auto registration = test::MakeSlot("a", 3, 4);
  registration.lane = static_cast<std::uint8_t>(layout::Lane::kDirect);
  Open(registration);
  test::WriteNumbers(*writer_, 5);
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
  test::Seal(slot_.block.data, 1);
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
}

TEST_F(SlotRing, StatisticsThatContradictTheTensorAreRefused) {
  auto registration = test::MakeSlot("a", 3, 4);
  registration.flags = layout::kSlotHoldsStats;
  registration.payload_bytes = sizeof(layout::DeviceStats);
  const auto geometry = layout::ComputeGeometry(registration.payload_bytes, 4);
  registration.payload_stride_bytes = geometry.payload_stride_bytes;
  registration.headers_offset = geometry.headers_offset;
  registration.payload_offset = geometry.payload_offset;
  Open(registration);
  layout::DeviceStats stats = {};
  stats.count = 3;
  stats.nan = 1;
  ASSERT_TRUE(writer_->Begin());
  std::memcpy(writer_->payload(), &stats, sizeof(stats));
  writer_->Commit(1);
  Header(1)->flags = layout::kEntryIsStats;
  ASSERT_EQ(reader_->Read(1, &entry_), ReadStatus::kOk);
  EXPECT_EQ(entry_.stats.nan, 1u);
  EXPECT_TRUE(entry_.payload.empty());
  stats.nan = 4;
  std::memcpy(slot_.block.data + registration.payload_offset, &stats, sizeof(stats));
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
  stats.nan = stats.pos_inf = 2;
  std::memcpy(slot_.block.data + registration.payload_offset, &stats, sizeof(stats));
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged) << "4 of 3 elements";
  Header(1)->flags = 0;
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged) << "128 bytes that are not a tensor";
}

TEST(Plausible, OnlyARowOfPaddingMayBeOfAPartOfItsTensor) {
  const layout::SlotRegistration of_three = test::MakeSlot("a", 3, 4);
  layout::DeviceStats stats = {};
  stats.count = 2;
  stats.first_nonfinite = 2;  // its place in the whole tensor
  EXPECT_TRUE(IsPlausible(stats, of_three, /*of_part=*/true));
  EXPECT_FALSE(IsPlausible(stats, of_three));
  stats.zero = 3;
  EXPECT_FALSE(IsPlausible(stats, of_three, /*of_part=*/true)) << "3 of 2 elements";
  stats = {.count = 4};
  EXPECT_FALSE(IsPlausible(stats, of_three, /*of_part=*/true));
  EXPECT_TRUE(layout::IsOfPadding("5 padding 4") && layout::IsOfPadding("5 padding.mixed 4") &&
              layout::IsOfPadding("5 padding"));
  EXPECT_FALSE(layout::IsOfPadding("5 aten.mm.default 4") || layout::IsOfPadding("") ||
               layout::IsOfPadding("padding") || layout::IsOfPadding("gap log padding"));
}

TEST_F(SlotRing, AnUnchangedTensorIsReadAtEachReplayAsLongAsItsHeaderIsThere) {
  constexpr std::uint32_t kCapacity = 3;
  OpenSkipping(kCapacity);
  std::mt19937 random(1);
  std::vector<int> shown = {0};  // by ordinal; -1: statistics
  int value = 0;
  for (int i = 0; i < 2000; ++i) {
    const unsigned choice = random() % 8;
    if (choice == 0) {
      layout::DeviceStats stats = {};
      stats.count = 40;
      skipping_->RunStats(stats);
      shown.push_back(-1);
    } else {
      if (choice < 4) value = static_cast<int>(random() % 3);  // often one that was there before
      skipping_->Run(std::vector<std::int32_t>(40, value));
      shown.push_back(value);
    }
    const std::uint64_t newest = reader_->accepted();
    ASSERT_EQ(newest, shown.size() - 1);
    for (std::uint64_t n = reader_->oldest(newest); n <= newest; ++n) {
      ASSERT_EQ(reader_->Read(n, &entry_), ReadStatus::kOk) << n << " of " << newest;
      ASSERT_EQ(entry_.replay, n);
      if (shown[n] == -1) {
        ASSERT_TRUE(entry_.payload.empty());
        ASSERT_EQ(entry_.stats.count, 40u);
      } else {
        ASSERT_EQ(test::Numbers(entry_), std::vector<std::int32_t>(40, shown[n]));
      }
    }
    if (newest > kCapacity) {
      ASSERT_EQ(reader_->Read(newest - kCapacity, &entry_), ReadStatus::kOverwritten);
    }
  }
  EXPECT_GT(reader_->head().unchanged, 500u);
}

TEST_F(SlotRing, AValueThatTheNextReplayIsOverwritingIsNotRead) {
  OpenSkipping(2);
  skipping_->Run(std::vector<std::int32_t>(40, 1));
  skipping_->Run(std::vector<std::int32_t>(40, 1));
  skipping_->Run(std::vector<std::int32_t>(40, 2));
  const std::vector<std::int32_t> next(40, 3);
  skipping_->Claim();
  skipping_->Send(next.data(), 160);  // takes the place of the first value
  EXPECT_EQ(reader_->Read(2, &entry_), ReadStatus::kOverwritten);
  ASSERT_EQ(reader_->Read(3, &entry_), ReadStatus::kOk);
  EXPECT_EQ(test::Numbers(entry_)[0], 2);
}

TEST_F(SlotRing, AnEntryThatNamesAnotherPayloadIsRefused) {
  OpenSkipping(4);
  skipping_->Run(std::vector<std::int32_t>(40, 1));
  skipping_->Run(std::vector<std::int32_t>(40, 2));
  skipping_->Run(std::vector<std::int32_t>(40, 2));
  for (const std::uint64_t number : {0ul, 1ul, 3ul, 6ul, ~0ul}) {
    Header(3)->reference = number;
    EXPECT_EQ(reader_->Read(3, &entry_), ReadStatus::kDamaged) << number;
  }
  Header(3)->reference = 2;
  EXPECT_EQ(reader_->Read(3, &entry_), ReadStatus::kOk);
}

TEST_F(SlotRing, ASlotTooSmallForStatisticsHoldsNone) {
  Open(test::MakeSlot("a", 3, 4));
  test::WriteNumbers(*writer_, 1);
  Header(1)->flags = layout::kEntryIsStats;
  EXPECT_EQ(reader_->Read(1, &entry_), ReadStatus::kDamaged);
}

}  // namespace
}  // namespace cgdebug::ring
