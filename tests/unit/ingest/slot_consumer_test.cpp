// How one slot's ring is read and accounted for, with a real segment of this process.
#include "daemon/ingest/slot/slot_consumer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "daemon/sinks/model_sink.h"
#include "libprobe/ring/shared_copy.h"
#include "tests/support/ring/body_ring.h"
#include "tests/support/ring/device_ring_writer.h"
#include "tests/support/ring/ring_fixture.h"
#include "tests/support/ring/skipping_ring.h"

namespace cgdebug::ingest {
namespace {

using pipeline::Gap;
using testing::ElementsAre;

class FakeSink final : public pipeline::Sink {
 public:
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback&) override {
    (delivery.seen_before ? seen_before : ordinals).push_back(delivery.snapshot->ordinal);
    places.emplace_back(delivery.snapshot->replay, delivery.snapshot->iteration);
    has_values = delivery.payload != nullptr;
    last = {delivery.snapshot, delivery.payload};
    if (keeps) kept = delivery.payload;
  }
  void Lose(const Gap& gap) override { gaps.push_back(gap); }
  void CloseSlot(const pipeline::SlotPtr&, std::uint64_t last_replay,
                 pipeline::SlotFeedback& feedback) override {
    closed_with = last_replay;
    kept_back = feedback.suppressed();
  }
  void Flush() override {
    if (on_flush) on_flush();
  }

  std::vector<Gap> gaps;
  std::vector<std::uint64_t> ordinals, seen_before;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> places;  // replay, iteration
  bool has_values = false;                                      // of the last one
  std::uint64_t closed_with = 0;
  std::uint64_t kept_back = 0;  // when the slot was closed
  pipeline::StoredSnapshot last;
  bool keeps = false;
  pipeline::PayloadPtr kept;
  std::function<void()> on_flush;
};

class ConsumedSlot : public ::testing::Test {
 protected:
  explicit ConsumedSlot(std::uint64_t elements = 3)
      : registration_(test::MakeSlot("a", elements, 4)) {}

  void SetUp() override {
    slot_ = test::PublishSlot(segment_, registration_);
    writer_.emplace(slot_.block.data, segment_.producer(), segment_.gate());
    std::string reason;
    view_ = ring::SegmentView::Attach(segment_.name(), &reason);
    ASSERT_NE(view_, nullptr) << reason;
    session_ = registry_.AddSession(
        pipeline::MakeSessionIdentity(view_->name(), view_->uuid(), view_->header()));
    Attach();
  }
  // Attaches as the next daemon.
  void Attach() {
    std::string reason;
    auto ring = view_->OpenSlot(slot_.index, &reason);
    ASSERT_TRUE(ring) << reason;
    ring_ = ring;
    auto slot = std::make_shared<const pipeline::SlotIdentity>(
        pipeline::MakeSlotIdentity(session_, slot_.index, ring->generation(), registration_));
    const Destination destination = {&registry_, &controls_, &reads_, &payloads_, &model_};
    consumer_.emplace(std::move(slot), *std::move(ring), view_.get(), destination, &masks_);
    consumer_->Start();
  }
  void TearDown() override { segment_.Close(/*unlink=*/true); }

  SlotConsumer::Step Step() {
    consumer_->Prepare();
    return consumer_->Commit();
  }
  void Write(int count) {
    for (int i = 1; i <= count; ++i) test::WriteNumbers(*writer_, i);
  }
  pipeline::SlotRecord Record() const { return registry_.Slots(session_).at(0); }
  layout::EntryHeader* Header(std::uint64_t ordinal) {
    auto* headers = reinterpret_cast<layout::EntryHeader*>(
        slot_.block.data + consumer_->slot()->registration.headers_offset);
    return &headers[(ordinal - 1) % 4];
  }

  layout::SlotRegistration registration_;
  ring::SegmentWriter segment_{ring::Identity{}};
  test::Slot slot_;
  std::optional<ring::SlotRingWriter> writer_;
  std::unique_ptr<ring::SegmentView> view_;
  std::optional<ring::SlotRingReader> ring_;  // the consumer's, to look at
  pipeline::Registry registry_;
  pipeline::SessionPtr session_;
  pipeline::ControlQueue controls_;
  pipeline::RingReads reads_;
  pipeline::EventLog events_;
  pipeline::PayloadPool payloads_{1 << 20};
  FakeSink sink_;
  sinks::ModelSink model_{&registry_, &events_, &sink_};
  LogMasks masks_;
  std::optional<SlotConsumer> consumer_;
};

class ConsumedSkipping : public ConsumedSlot {
 protected:
  ConsumedSkipping() : ConsumedSlot(40) { test::SkipUnchanged(&registration_); }
  void SetUp() override {
    ConsumedSlot::SetUp();
    skipping_.emplace(slot_.block.data, segment_.producer());
  }
  void Run(std::int32_t value) { skipping_->Run(std::vector<std::int32_t>(40, value)); }
  std::int32_t Shown() const {
    std::int32_t value = 0;
    std::memcpy(&value, sink_.last.payload->data(), sizeof(value));
    return value;
  }

  std::optional<test::SkippingWriter> skipping_;
};

TEST_F(ConsumedSkipping, APayloadThatIsStillThereIsNotCopiedAgain) {
  sink_.keeps = true;
  Run(7);
  ASSERT_EQ(Step(), SlotConsumer::Step::kConsumed);
  const pipeline::PayloadPtr first = sink_.last.payload;
  for (int i = 0; i < 9; ++i) {
    Run(7);
    ASSERT_EQ(Step(), SlotConsumer::Step::kConsumed);
    EXPECT_EQ(sink_.last.payload, first);
    EXPECT_FALSE(sink_.last.snapshot->changed);
    EXPECT_EQ(sink_.last.snapshot->replay, 2u + i);
    EXPECT_EQ(sink_.last.snapshot->stats.min, 7);
  }
  Run(8);
  ASSERT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_NE(sink_.last.payload, first);
  EXPECT_TRUE(sink_.last.snapshot->changed);
  EXPECT_EQ(Shown(), 8);
  EXPECT_EQ(Record().counters.unchanged, 9u);
  EXPECT_EQ(Record().counters.lost(), 0u);
}

// Whoever else holds the payloads, however much of the ring is lost in between, and whenever a
// daemon takes over.
TEST_F(ConsumedSkipping, EverySnapshotHasItsOwnValueAndIsUnchangedOnlyIfItIs) {
  std::mt19937 random(1);
  std::vector<std::int32_t> written = {0};
  std::int32_t value = 0;
  std::optional<std::int32_t> before;
  std::size_t lost = 0, unchanged = 0;
  std::uint64_t last_ordinal = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    sink_.keeps = random() % 4 != 0;
    if (random() % 50 == 0) {
      layout::DeviceStats stats = {};
      stats.count = 40;
      skipping_->RunStats(stats);
      written.push_back(-1);
    }
    if (random() % 3 == 0) value = static_cast<std::int32_t>(random() % 3);
    Run(value);
    written.push_back(value);
    if (random() % 100 == 0) {
      sink_.last = {};
      sink_.kept = nullptr;
      Attach();
      before.reset();
    }
    for (unsigned steps = random() % 3; steps-- > 0;) {
      sink_.last = {};
      if (Step() != SlotConsumer::Step::kConsumed) continue;
      const auto& [snapshot, payload] =
          sink_.last;  // a new daemon begins with what was read before
      const std::uint64_t ordinal = snapshot->ordinal;
      if (ordinal > last_ordinal) {
        lost += ordinal - last_ordinal - 1;
        last_ordinal = ordinal;
      }
      if (written.at(ordinal) == -1) {
        ASSERT_EQ(payload, nullptr);
        before.reset();
        continue;
      }
      ASSERT_NE(payload, nullptr);
      ASSERT_EQ(payload->size(), 160u);
      ASSERT_EQ(Shown(), written.at(ordinal));
      ASSERT_EQ(snapshot->stats.max, Shown());
      ASSERT_EQ(snapshot->ordinal, snapshot->replay);
      if (!snapshot->changed) {
        ASSERT_TRUE(before);
        ASSERT_EQ(*before, Shown()) << "not the same";
        ++unchanged;
      }
      before = Shown();
      if (!sink_.keeps) sink_.kept = nullptr;  // nobody has it any more
    }
  }
  EXPECT_GT(lost, 100u);
  EXPECT_GT(unchanged, 100u);
}

// Its values stay on the device, where a ring keeps 3 of them.
class ConsumedOnDevice : public ConsumedSlot {
 protected:
  ConsumedOnDevice() : ConsumedSlot(40) { test::PutOnDevice(&registration_, 3); }
  void SetUp() override {
    ConsumedSlot::SetUp();
    device_.emplace(slot_.block.data, segment_.producer());
  }
  pipeline::RingContent Read(std::uint64_t ordinal, bool alive = true) {
    return consumer_->Read({consumer_->slot(), ordinal, ordinal, 1 << 20}, alive);
  }

  std::optional<test::DeviceRingWriter> device_;
};

TEST_F(ConsumedOnDevice, EveryHeaderIsConsumedAndWhatStaysOnTheDeviceIsNamed) {
  for (int replay = 1; replay <= 3; ++replay) {
    device_->Run(replay);
    ASSERT_EQ(Step(), SlotConsumer::Step::kConsumed);
  }
  EXPECT_TRUE(sink_.ordinals.empty()) << "no values, and no statistics";
  ASSERT_EQ(sink_.gaps.size(), 3u);
  EXPECT_EQ(sink_.gaps[2].cause, layout::LossCause::kOnDevice);
  EXPECT_EQ(sink_.gaps[2].last_replay, 3u);
  EXPECT_EQ(Record().counters.consumed, 3u);
  EXPECT_EQ(Record().counters.lost(), 0u);
  EXPECT_EQ(registry_.Sessions().front().probes.unseen, 1u);
}

TEST_F(ConsumedOnDevice, TheNextDaemonKnowsBeforeAnotherReplayThatNobodyHasLookedAtTheValues) {
  for (int replay = 1; replay <= 3; ++replay) {
    device_->Run(replay);
    ASSERT_EQ(Step(), SlotConsumer::Step::kConsumed);
    consumer_->Settle();
  }
  registry_.ForgetSession(session_);
  session_ = registry_.AddSession(
      pipeline::MakeSessionIdentity(view_->name(), view_->uuid(), view_->header()));
  sink_.gaps.clear();
  Attach();
  EXPECT_EQ(consumer_->consumed(), 3u);
  while (consumer_->HasWork()) Step();
  EXPECT_EQ(registry_.Sessions().front().probes.unseen, 1u);
  EXPECT_TRUE(sink_.gaps.empty()) << "the earlier daemon told of them";
}

TEST_F(ConsumedOnDevice, AValueIsWaitedForUntilAReplaySendsIt) {
  for (int replay = 1; replay <= 3; ++replay) device_->Run(100 * replay);
  EXPECT_TRUE(Read(2).waiting);
  device_->Run(400);
  const pipeline::RingContent content = Read(2);
  EXPECT_FALSE(content.waiting);
  ASSERT_EQ(content.entries.size(), 1u);
  EXPECT_EQ(test::Numbers(content.entries[0])[0], 200);
}

TEST_F(ConsumedOnDevice, AValueThatWasOverwrittenThereIsNotWaitedFor) {
  for (int replay = 1; replay <= 4; ++replay) device_->Run(100 * replay);
  const pipeline::RingContent content = Read(1);
  EXPECT_FALSE(content.waiting);
  EXPECT_THAT(content.unreadable, ElementsAre(testing::Pair(1, layout::LossCause::kOnDevice)));
}

TEST_F(ConsumedOnDevice, TheNewestValueIsTheOneOfTheNextReplayThatLearnsOfIt) {
  for (int replay = 1; replay <= 4; ++replay) device_->Run(100 * replay);
  pipeline::RingRequest newest = {.slot = consumer_->slot(), .newest = true};
  const pipeline::RingContent first = consumer_->Read(newest, true);
  EXPECT_TRUE(first.waiting);
  newest.at_least = first.newest;
  device_->Run(500);
  device_->Run(600);  // asked for once
  const pipeline::RingContent content = consumer_->Read(newest, true);
  ASSERT_EQ(content.entries.size(), 1u);
  EXPECT_EQ(test::Numbers(content.entries[0])[0], 500);
}

TEST_F(ConsumedOnDevice, TheAnswerToAClientThatGaveUpIsNotTheNewestValueOfTheNext) {
  for (int replay = 1; replay <= 2; ++replay) device_->Run(100 * replay);
  pipeline::RingRequest newest = {.slot = consumer_->slot(), .newest = true};
  EXPECT_TRUE(consumer_->Read(newest, true).waiting);
  for (int replay = 3; replay <= 6; ++replay) device_->Run(100 * replay);
  ASSERT_EQ(device_->window().word, layout::EntryWord(3, layout::EntryState::kReady));
  const pipeline::RingContent second = consumer_->Read(newest, true);
  EXPECT_TRUE(second.waiting);
  newest.at_least = second.newest;
  device_->Run(700);
  const pipeline::RingContent content = consumer_->Read(newest, true);
  ASSERT_EQ(content.entries.size(), 1u);
  EXPECT_EQ(test::Numbers(content.entries[0])[0], 700);
}

TEST_F(ConsumedOnDevice, TheNewestValueComesAlsoToTheNextDaemon) {
  device_->Run(100);
  pipeline::RingRequest newest = {.slot = consumer_->slot(), .newest = true};
  EXPECT_TRUE(consumer_->Read(newest, true).waiting);
  for (int replay = 2; replay <= 3; ++replay) device_->Run(100 * replay);
  Attach();
  newest.slot = consumer_->slot();
  const pipeline::RingContent first = consumer_->Read(newest, true);
  EXPECT_TRUE(first.waiting);
  newest.at_least = first.newest;
  device_->Run(400);
  EXPECT_EQ(consumer_->Read(newest, true).entries.size(), 1u);
}

TEST_F(ConsumedOnDevice, AValueThatHasComeIsNotSentAgain) {
  for (int replay = 1; replay <= 3; ++replay) device_->Run(100 * replay);
  EXPECT_TRUE(Read(3).waiting);
  device_->Run(400);
  ASSERT_EQ(device_->window().word, layout::EntryWord(3, layout::EntryState::kReady));
  consumer_->Refresh();  // also if the client has gone
  EXPECT_EQ(Read(3).entries.size(), 1u) << "it lies in the window until another is asked for";
  device_->window().word = 0;
  device_->Run(500);
  EXPECT_EQ(device_->window().word, 0u);
}

TEST_F(ConsumedOnDevice, NothingIsWaitedForWhenTheJobIsGone) {
  for (int replay = 1; replay <= 3; ++replay) device_->Run(100 * replay);
  device_->Send(2);
  ASSERT_EQ(Read(2, /*alive=*/false).entries.size(), 1u) << "it came while the job lived";
  EXPECT_THAT(Read(3, /*alive=*/false).unreadable,
              ElementsAre(testing::Pair(3, layout::LossCause::kOnDevice)));
}

TEST_F(ConsumedOnDevice, NothingIsWaitedForWhenTheGraphIsGoneExceptByARecording) {
  for (int replay = 1; replay <= 3; ++replay) device_->Run(100 * replay);
  segment_.Retire(slot_.index);
  const pipeline::SlotPtr& slot = consumer_->slot();
  for (const auto& request : {pipeline::RingRequest{.slot = slot, .newest = true},
                              pipeline::RingRequest{.slot = slot, .replay = 3}}) {
    const pipeline::RingContent content = consumer_->Read(request, true);
    EXPECT_FALSE(content.waiting);
    EXPECT_THAT(content.unreadable, ElementsAre(testing::Pair(3, layout::LossCause::kOnDevice)));
  }
  EXPECT_TRUE(Read(3).waiting) << "the job sends it at its end";
}

TEST_F(ConsumedOnDevice, ARecordingGetsTheValuesOfEveryReplay) {
  device_->Run(100);
  ASSERT_EQ(Step(), SlotConsumer::Step::kConsumed);
  consumer_->SetControl({.slot = consumer_->slot(),
                         .control = {},
                         .lossless = layout::Lossless::kAsRegistered,
                         .wants_values = true});
  for (int replay = 2; replay <= 5; ++replay) {
    device_->Run(100 * replay);
    ASSERT_EQ(Step(), SlotConsumer::Step::kConsumed);
    EXPECT_TRUE(sink_.has_values);
  }
  EXPECT_THAT(sink_.ordinals, ElementsAre(2, 3, 4, 5));
  consumer_->SetControl({.slot = consumer_->slot(),
                         .control = {},
                         .lossless = layout::Lossless::kAsRegistered,
                         .wants_values = false});
  device_->Run(600);
  ASSERT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_EQ(sink_.ordinals.size(), 4u);
  EXPECT_EQ(sink_.gaps.back().last_replay, 6u);
}

// In the body of a conditional node, in a ring of 4.
class ConsumedBody : public ConsumedSlot {
 protected:
  ConsumedBody() { test::PutIntoBody(&registration_); }
  void SetUp() override {
    ConsumedSlot::SetUp();
    body_.emplace(slot_.block.data, segment_.producer());
  }
  void Replay(std::int32_t runs) {
    body_->BeginReplay();
    for (std::int32_t i = 0; i < runs; ++i) {
      const std::int32_t values[] = {i, i, i};
      body_->Run(std::as_bytes(std::span(values)));
    }
  }
  void ConsumeAll() {
    while (consumer_->HasWork()) Step();
    consumer_->Settle();
  }

  std::optional<test::BodyWriter> body_;
};

TEST_F(ConsumedBody, EachIterationIsASnapshotAndABodyThatDidNotRunIsNoLoss) {
  for (const int runs : {1, 0, 3, 0, 0}) {
    Replay(runs);
    ConsumeAll();
  }
  EXPECT_THAT(sink_.places, ElementsAre(std::pair(1u, 0u), std::pair(3u, 0u), std::pair(3u, 1u),
                                        std::pair(3u, 2u)));
  EXPECT_TRUE(sink_.gaps.empty());
  consumer_->Refresh();
  const layout::Counters counters = Record().counters;
  EXPECT_EQ(counters.produced, 4u);
  EXPECT_EQ(counters.consumed, 4u);
  EXPECT_EQ(counters.lost(), 0u);
  EXPECT_EQ(counters.taken, 2u);
  EXPECT_EQ(counters.graph_replays, 5u);
  consumer_->Finish();
  EXPECT_TRUE(sink_.gaps.empty());
}

TEST_F(ConsumedBody, WhatIsLostAmongTheIterationsOfAReplayIsCountedAndPlacedInIt) {
  Replay(1);
  ConsumeAll();
  Replay(7);
  ConsumeAll();
  EXPECT_THAT(sink_.places, ElementsAre(std::pair(1u, 0u), std::pair(2u, 3u), std::pair(2u, 4u),
                                        std::pair(2u, 5u), std::pair(2u, 6u)));
  ASSERT_EQ(sink_.gaps.size(), 1u);
  EXPECT_EQ(sink_.gaps[0].count, 3u);
  EXPECT_EQ(sink_.gaps[0].last_ordinal, 4u);
  EXPECT_EQ(sink_.gaps[0].last_replay, 2u) << "the lost ones are of the same replay";
  EXPECT_EQ(sink_.gaps[0].before_replay, 2u);
  EXPECT_EQ(Record().counters.lost_overwritten, 3u);
}

TEST_F(ConsumedSlot, ReportsOverwrittenSnapshotsBeforeTheSlotIsGivenUp) {
  for (int i = 1; i <= 10; ++i) test::WriteNumbers(*writer_, i);
  consumer_->Refresh();
  Header(7)->word = layout::EntryWord(7, layout::EntryState::kFilling);  // not there yet
  EXPECT_EQ(Step(), SlotConsumer::Step::kComing);
  EXPECT_EQ(ring_->consumed(), 6u) << "a writer need not wait for what is lost";
  segment_.Release(slot_.index, slot_.block);
  EXPECT_EQ(Step(), SlotConsumer::Step::kGone);
  consumer_->GiveUp();
  ASSERT_EQ(sink_.gaps.size(), 2u);
  EXPECT_EQ(sink_.gaps[0].cause, layout::LossCause::kOverwritten);
  EXPECT_EQ(sink_.gaps[0].count, 6u);
  EXPECT_EQ(sink_.gaps[0].last_ordinal, 6u);
  EXPECT_EQ(sink_.gaps[1].cause, layout::LossCause::kReleased);
  EXPECT_EQ(sink_.gaps[1].count, 4u);
  EXPECT_EQ(sink_.gaps[1].last_ordinal, 10u);
  EXPECT_EQ(Record().counters.lost_overwritten, 6u);
  EXPECT_EQ(Record().counters.produced, 6u) << "the producer itself counts what it gave up";
}

TEST_F(ConsumedSlot, WhatTheNextOwnerOfItsMemoryWritesIsNoCountOfASlotThatWasGivenUp) {
  Write(2);
  auto* head = reinterpret_cast<layout::SlotHead*>(slot_.block.data + layout::kSlotHeadOffset);
  head->suppressed = 3;
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  segment_.Release(slot_.index, slot_.block);
  std::memset(head, 'a', sizeof(layout::SlotHead));
  EXPECT_EQ(consumer_->head().ordinal, 2u);
  consumer_->GiveUp();
  EXPECT_EQ(sink_.kept_back, 3u);
}

TEST_F(ConsumedSlot, AGapIsReportedWithTheReplaysAroundIt) {
  Write(10);
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  ASSERT_EQ(sink_.gaps.size(), 1u);
  EXPECT_EQ(sink_.gaps[0].count, 6u);
  EXPECT_EQ(sink_.gaps[0].last_ordinal, 6u);
  EXPECT_EQ(sink_.gaps[0].last_replay, 6u);
  EXPECT_EQ(sink_.gaps[0].before_replay, 7u);
  EXPECT_FALSE(sink_.gaps[0].before_forced);
  EXPECT_THAT(sink_.ordinals, ElementsAre(7));
}

TEST_F(ConsumedSlot, AGapBeforeWhatTheLiveControlAskedForSaysSo) {
  consumer_->SetControl({consumer_->slot(), {.mode = layout::ControlMode::kFull, .every = 1}});
  Write(10);
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  Header(8)->flags |= layout::kEntryHasChecksum;  // of none
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  ASSERT_EQ(sink_.gaps.size(), 2u);
  EXPECT_TRUE(sink_.gaps[0].before_forced);
  EXPECT_EQ(sink_.gaps[1].cause, layout::LossCause::kCorrupted);
  EXPECT_TRUE(sink_.gaps[1].before_forced) << "it was asked for itself";
}

TEST_F(ConsumedSlot, ADamagedEntryIsCountedApartFromOverwrittenOnes) {
  Write(10);
  Header(7)->flags = layout::kEntryHasChecksum;  // of none
  const auto content = consumer_->Read({consumer_->slot(), 1, 10, 1 << 20}, true);
  EXPECT_EQ(content.entries.size(), 3u);
  EXPECT_EQ(content.unreadable,
            (std::map<std::uint64_t, layout::LossCause>{{7, layout::LossCause::kCorrupted}}));
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  ASSERT_EQ(sink_.gaps.size(), 2u);
  EXPECT_EQ(sink_.gaps[0].cause, layout::LossCause::kOverwritten);
  EXPECT_EQ(sink_.gaps[0].count, 6u);
  EXPECT_EQ(sink_.gaps[0].last_replay, 6u);
  EXPECT_EQ(sink_.gaps[0].before_replay, 7u);
  EXPECT_EQ(sink_.gaps[1].cause, layout::LossCause::kCorrupted);
  EXPECT_EQ(sink_.gaps[1].count, 1u);
  EXPECT_EQ(sink_.gaps[1].last_ordinal, 7u);
  EXPECT_EQ(sink_.gaps[1].last_replay, 7u);
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_THAT(sink_.ordinals, ElementsAre(8));
  EXPECT_EQ(Record().counters.lost_overwritten, 6u);
  EXPECT_EQ(Record().counters.lost_damaged, 1u);
}

TEST_F(ConsumedSlot, TheNextDaemonGoesOnWithTheCountsOfTheOneBefore) {
  Write(6);
  Step();
  consumer_->Settle();
  Attach();
  EXPECT_EQ(consumer_->consumed_before(), 3u);
  EXPECT_TRUE(consumer_->IsReadingAgain());
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_THAT(sink_.seen_before, ElementsAre(3));
  EXPECT_FALSE(consumer_->IsReadingAgain());
  EXPECT_EQ(Record().counters.consumed, 1u);
  EXPECT_EQ(Record().counters.lost_overwritten, 2u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_THAT(sink_.ordinals, ElementsAre(3, 4, 5, 6)) << "each once";
  EXPECT_EQ(Step(), SlotConsumer::Step::kIdle);
}

TEST_F(ConsumedSlot, ADaemonThatIsKilledBeforeItMovesTheCreditLeavesNoLossToCountTwice) {
  Write(10);
  Step();
  consumer_->Settle();
  Write(10);
  Step();
  consumer_->Settle();
  auto* credit =
      reinterpret_cast<layout::SlotCredit*>(slot_.block.data + layout::kSlotCreditOffset);
  ring::StoreRelaxed(credit->consumed, std::uint64_t{7});  // the last store of the second Settle()
  Attach();
  EXPECT_EQ(Record().counters.lost_overwritten, 6u);
  EXPECT_EQ(Record().counters.consumed, 1u);
  while (Step() == SlotConsumer::Step::kConsumed) {
  }
  EXPECT_EQ(Record().counters.lost_overwritten, 15u);
  EXPECT_EQ(Record().counters.consumed, 5u);
  EXPECT_EQ(Record().counters.produced, 20u);
}

TEST_F(ConsumedSlot, ACreditForWhatWasNeverWrittenIsNotBelieved) {
  Write(1);
  ring_->SetConsumed(50, 50);
  Attach();
  Write(1);
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_THAT(sink_.seen_before, ElementsAre(1));
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_THAT(sink_.ordinals, ElementsAre(2));
}

TEST_F(ConsumedSlot, WhatADeadJobLeftUnreadIsReportedBeforeTheSlotIsGivenBack) {
  Write(2);
  ASSERT_TRUE(writer_->Begin());
  std::uint64_t credit_at_flush = 99;
  sink_.on_flush = [&] { credit_at_flush = ring_->consumed(); };
  consumer_->Finish();
  EXPECT_EQ(credit_at_flush, 0u);
  EXPECT_EQ(ring_->consumed(), 2u);
  ASSERT_EQ(sink_.gaps.size(), 2u);
  EXPECT_EQ(sink_.gaps[0].count, 2u);
  EXPECT_EQ(sink_.gaps[0].last_ordinal, 2u);
  EXPECT_EQ(sink_.gaps[0].last_replay, 2u);
  EXPECT_EQ(sink_.gaps[1].cause, layout::LossCause::kAtDeath);
  EXPECT_EQ(sink_.gaps[1].last_ordinal, 3u);
  EXPECT_EQ(sink_.gaps[1].last_replay, 3u);
  EXPECT_EQ(sink_.closed_with, 3u);
}

TEST_F(ConsumedSlot, AControlIsOverWhenWhatItAskedForIsRead) {
  consumer_->SetControl({consumer_->slot(),
                         {.mode = layout::ControlMode::kFull,
                          .trigger = layout::ControlTrigger::kNonfinite,
                          .until = 2},
                         /*from_next=*/true});
  EXPECT_EQ(Record().control.from, 1u);
  EXPECT_EQ(Record().control.until, 2u);
  Write(2);
  consumer_->Refresh();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Record().control.mode, layout::ControlMode::kFull);
    EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
    EXPECT_FALSE(sink_.has_values) << "there is no NaN among integers";
  }
  EXPECT_EQ(Record().control.mode, layout::ControlMode::kAsRegistered);
}

class DirectSlot : public ConsumedSlot {
 protected:
  DirectSlot() { registration_.lane = static_cast<std::uint8_t>(layout::Lane::kDirect); }
};

TEST_F(DirectSlot, AControlBeginsWithTheReplayThatNoKernelHasDecidedAbout) {
  Write(3);
  consumer_->SetControl({consumer_->slot(), {.mode = layout::ControlMode::kOff, .until = 2}, true});
  EXPECT_EQ(Record().control.from, 5u);
  EXPECT_EQ(Record().control.until, 6u);
}

// Its kernel counts a replay when it is committed.
TEST_F(DirectSlot, AHalfWrittenEntryBelongsToTheReplayAfterTheLast) {
  Write(2);
  for (const std::uint64_t ordinal : {1, 2}) test::Seal(slot_.block.data, ordinal);
  for (int i = 0; i < 2; ++i) Step();
  Header(3)->word = layout::EntryWord(3, layout::EntryState::kFilling);
  consumer_->Finish();
  ASSERT_EQ(sink_.gaps.size(), 1u);
  EXPECT_EQ(sink_.gaps[0].cause, layout::LossCause::kAtDeath);
  EXPECT_EQ(sink_.gaps[0].last_replay, 3u);
}

class FloatSlot : public ConsumedSlot {
 protected:
  FloatSlot() { registration_.dtype = static_cast<std::uint16_t>(layout::Dtype::kFloat32); }
};

TEST_F(FloatSlot, TheFirstInfStaysWhenTheFirstNanComesWithAnother) {
  test::WriteNumbers(*writer_, 0x7f7ffffe);  // the last of these bits is Inf
  test::WriteNumbers(*writer_, 0x7f800000);  // Inf, NaN, NaN
  for (int i = 0; i < 2; ++i) Step();
  EXPECT_EQ(ring_->firsts().inf.replay, 1u);
  EXPECT_EQ(ring_->firsts().inf.count, 1u);
  EXPECT_EQ(ring_->firsts().nan.replay, 2u);
  EXPECT_EQ(ring_->firsts().nan.count, 2u);
}

TEST_F(ConsumedSlot, ReadingARingWhoseHeadIsRubbishEnds) {
  test::WriteNumbers(*writer_, 1);
  auto* head = reinterpret_cast<layout::SlotHead*>(slot_.block.data + layout::kSlotHeadOffset);
  ring::StoreRelaxed(head->accepted, ~std::uint64_t{0});
  const auto content = consumer_->Read({consumer_->slot(), 1, ~std::uint64_t{0}, 1 << 20}, true);
  EXPECT_TRUE(content.entries.empty());
  EXPECT_EQ(content.newest, layout::kMaxOrdinal);
}

// Leaves this process hardly anything that it may map.
class MemoryLimit {
 public:
  MemoryLimit() {
    std::ifstream("/proc/self/statm") >> mapped_pages_;
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = mapped_pages_ * static_cast<rlim_t>(getpagesize()) + kLeftBytes;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~MemoryLimit() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }

  bool Holds() const {
    void* more = mmap(nullptr, 2 * kLeftBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return more == MAP_FAILED || munmap(more, 2 * kLeftBytes) != 0;
  }

 private:
  static constexpr rlim_t kLeftBytes = 1u << 20;
  rlim_t mapped_pages_ = 0;
  rlimit before_ = {};
};

class LargeSlot : public ConsumedSlot {
 protected:
  LargeSlot() : ConsumedSlot(2u << 20) {}

  void Write(std::uint8_t value) {
    ASSERT_TRUE(writer_->Begin());
    std::memset(writer_->payload(), value, writer_->payload_bytes());
    writer_->Commit(0);
  }
};

TEST_F(LargeSlot, ASnapshotTooLargeForMemoryIsLostForThatReasonAndTheNextOneIsRead) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP() << "a sanitizer ends the process where there is no memory";
#endif
  Write(1);
  {
    const MemoryLimit limit;
    if (!limit.Holds()) GTEST_SKIP() << "this system has no RLIMIT_AS";
    const auto content = consumer_->Read({consumer_->slot(), 1, 1, 1 << 20}, true);
    EXPECT_TRUE(content.entries.empty());
    EXPECT_EQ(content.unreadable,
              (std::map<std::uint64_t, layout::LossCause>{{1, layout::LossCause::kNoMemory}}));
    EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  }
  ASSERT_EQ(sink_.gaps.size(), 1u);
  EXPECT_EQ(sink_.gaps[0].cause, layout::LossCause::kNoMemory);
  EXPECT_EQ(sink_.gaps[0].count, 1u);
  EXPECT_EQ(sink_.gaps[0].last_ordinal, 1u);
  EXPECT_EQ(sink_.gaps[0].last_replay, 1u);
  Write(1);
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  const auto record = registry_.Slots(consumer_->slot()->session).at(0);
  EXPECT_EQ(record.counters.consumed, 1u);
  EXPECT_EQ(record.counters.lost_no_memory, 1u);
  EXPECT_EQ(record.counters.lost_overwritten, 0u);
  ASSERT_NE(record.last, nullptr);
  EXPECT_EQ(record.last->ordinal, 2u);
  EXPECT_TRUE(record.last->changed) << "the one before is unknown";
}

TEST_F(LargeSlot, OverwrittenSnapshotsAreCountedApartFromThoseWithoutMemory) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP() << "a sanitizer ends the process where there is no memory";
#endif
  for (std::uint8_t value = 1; value <= 6; ++value) Write(value);
  {
    const MemoryLimit limit;
    if (!limit.Holds()) GTEST_SKIP() << "this system has no RLIMIT_AS";
    EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  }
  ASSERT_EQ(sink_.gaps.size(), 2u);
  EXPECT_EQ(sink_.gaps[0].cause, layout::LossCause::kOverwritten);
  EXPECT_EQ(sink_.gaps[0].count, 2u);
  EXPECT_EQ(sink_.gaps[1].cause, layout::LossCause::kNoMemory);
  EXPECT_EQ(sink_.gaps[1].count, 1u);
  EXPECT_EQ(sink_.gaps[1].last_ordinal, 3u);
}

// --- a daemon that takes over --------------------------------------------------------------------

class SlotTakenOver : public ConsumedSlot {
 protected:
  SlotTakenOver() : ConsumedSlot(/*elements=*/1 << 18) {}  // 1 MiB
};

TEST_F(SlotTakenOver, ATakeoverReadsTheNewestEntriesOnly) {
  Write(4);
  for (int i = 0; i < 4; ++i) Step();
  consumer_->Settle();
  Attach();
  EXPECT_THAT(sink_.seen_before, ElementsAre()) << "nothing is read before the first pass";
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_EQ(Step(), SlotConsumer::Step::kIdle);
  EXPECT_THAT(sink_.seen_before, ElementsAre(3, 4));
  EXPECT_EQ(Record().counters.bytes, 4u << 20) << "each counts once";
}

TEST_F(SlotTakenOver, ATakeoverReadsWhatIsNewBeforeWhatWasReadBefore) {
  Write(3);
  for (int i = 0; i < 3; ++i) Step();
  consumer_->Settle();
  Attach();
  Write(1);
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  EXPECT_EQ(ring_->consumed(), 3u);
  consumer_->Settle();
  EXPECT_EQ(ring_->consumed(), 4u) << "its writer may be waiting for that";
  EXPECT_THAT(sink_.seen_before, ElementsAre());
}

}  // namespace
}  // namespace cgdebug::ingest
