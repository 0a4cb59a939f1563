// Whole passes over a segment of this process.
#include "daemon/ingest/attached_segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "daemon/sinks/model_sink.h"
#include "proto/layout/realtime.h"
#include "tests/support/ring/body_ring.h"
#include "tests/support/ring/device_ring_writer.h"
#include "tests/support/ring/ring_fixture.h"
#include "tests/support/wait_until.h"

namespace cgdebug::ingest {
namespace {

class CallingSink final : public pipeline::Sink {
 public:
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback&) override {
    if (on_consume) on_consume(delivery);
  }
  void Lose(const pipeline::Gap& gap) override { lost += gap.count; }
  void Froze(const pipeline::RingFreeze& freeze) override { freezes.push_back(freeze); }
  void NotSeen(const pipeline::SessionPtr&, const layout::NotSeen& one) override {
    not_seen.push_back(one);
  }
  void ForgetSlot(const pipeline::SlotPtr& slot) override { forgotten.push_back(slot->probe); }
  void Flush() override {
    if (on_flush) on_flush();
  }
  std::function<void(const pipeline::Delivery&)> on_consume;
  std::function<void()> on_flush;
  std::uint64_t lost = 0;
  std::vector<std::string> forgotten;
  std::vector<pipeline::RingFreeze> freezes;
  std::vector<layout::NotSeen> not_seen;
};

class PassedOver : public ::testing::Test {
 protected:
  void Adopt() {
    std::string reason;
    auto view = ring::SegmentView::Attach(segment_.name(), &reason);
    ASSERT_NE(view, nullptr) << reason;
    auto adopted = AttachedSegment::Adopt(std::move(view), "",
                                          {&registry_, &controls_, &reads_, &payloads_, &model_});
    ASSERT_TRUE(adopted.ok()) << adopted.error().message;
    attached_ = *std::move(adopted);
  }
  void TearDown() override { segment_.Close(/*unlink=*/true); }

  bool Pass(bool thorough = true) {
    std::vector<SlotConsumer*> ready;
    attached_->BeginPass(thorough, &ready);
    for (SlotConsumer* slot : ready) {
      slot->Prepare();
      attached_->Commit(slot);
    }
    return attached_->EndPass();
  }

  layout::FreezeLine* FreezeLines() {
    return reinterpret_cast<layout::FreezeLine*>(segment_.mapping(0).data +
                                                 layout::kFreezeLineOffset);
  }

  ring::SegmentWriter segment_{ring::Identity{}};
  pipeline::Registry registry_;
  pipeline::ControlQueue controls_;
  pipeline::RingReads reads_;
  pipeline::EventLog events_;
  pipeline::PayloadPool payloads_{1 << 20};
  CallingSink sink_;
  sinks::ModelSink model_{&registry_, &events_, &sink_};
  std::unique_ptr<AttachedSegment> attached_;
};

// More slots than are all looked at in each pass.
class ManyPassedOver : public PassedOver {
 protected:
  void SetUp() override {
    for (std::uint64_t i = 0; i < 2 * SlotWatch::kMany; ++i) {
      auto registration = test::MakeSlot("a" + std::to_string(i), 3, 4);
      registration.order = i + 1;
      registration.graph_id = 1 + i / 256;
      slots_.push_back(test::PublishSlot(segment_, registration));
      writers_.emplace_back(slots_.back().block.data, segment_.producer(), segment_.gate());
    }
    Adopt();
  }
  // Runs one graph until the others are at rest.
  void LetOthersRest() {
    const auto end = SlotWatch::Clock::now() + 2 * SlotWatch::kRestAfter;
    while (SlotWatch::Clock::now() < end) {
      Write(0);
      Pass(/*thorough=*/false);
    }
  }
  void Write(std::size_t slot) {
    test::WriteNumbers(writers_[slot], 1);
    ++written_;
  }
  // Whether passes that need not look at every slot read everything.
  bool ReadsAll() {
    return test::WaitUntil([&] {
      Pass(/*thorough=*/false);
      return registry_.Sessions().at(0).counters.consumed == written_;
    });
  }

  std::uint64_t written_ = 0;
  std::vector<test::Slot> slots_;
  std::vector<ring::SlotRingWriter> writers_;
};

TEST_F(ManyPassedOver, ASlotThatRunsAloneAfterARestIsReadThoughNothingElseHappens) {
  LetOthersRest();
  Write(300);
  Write(300);
  EXPECT_TRUE(ReadsAll());
  EXPECT_EQ(sink_.lost, 0u);
}

TEST_F(ManyPassedOver, TheNextDaemonReadsWhatWasNotReadOfSlotsAtRest) {
  LetOthersRest();
  Write(300);
  attached_.reset();
  Write(700);
  Adopt();
  EXPECT_TRUE(ReadsAll());
  EXPECT_EQ(sink_.lost, 0u);
}

TEST_F(ManyPassedOver, ALossOfASlotAtRestIsCountedOnce) {
  LetOthersRest();
  ASSERT_TRUE(ReadsAll());
  for (int i = 0; i < 7; ++i) Write(300);  // of which the ring has 4
  written_ -= 3;
  EXPECT_TRUE(ReadsAll());
  EXPECT_EQ(sink_.lost, 3u);
  EXPECT_EQ(registry_.Sessions().at(0).counters.lost_overwritten, 3u);
}

TEST_F(PassedOver, AFreezeIsToldOnceAndNotAgainWhenItIsOver) {
  auto registration = test::MakeSlot("a", 40, 4);
  test::PutOnDevice(&registration, 3);
  test::PublishSlot(segment_, registration);
  FreezeLines()[0] = {
      .serial = 77, .order = 1, .replay = 5, .trigger = 1, .live = 0, .reserved = {}};
  Adopt();
  attached_->CheckProducer();
  attached_->CheckProducer();
  ASSERT_EQ(sink_.freezes.size(), 1u);
  EXPECT_EQ(sink_.freezes[0].slot->probe, "a");
  EXPECT_EQ(sink_.freezes[0].replay, 5u);
  EXPECT_EQ(sink_.freezes[0].trigger, layout::ControlTrigger::kNonfinite);
  attached_->Switch({.session = sink_.freezes[0].slot->session, .thawed = 77});
  const auto& thaw = *reinterpret_cast<const layout::ThawLine*>(segment_.mapping(0).data +
                                                                layout::kThawLineOffset);
  EXPECT_EQ(thaw.serial, 77u);
  attached_.reset();
  Adopt();  // the next daemon
  attached_->CheckProducer();
  EXPECT_EQ(sink_.freezes.size(), 1u);
}

TEST_F(PassedOver, AFreezeIsToldAlsoWhenItsSlotIsGoneOrWasNeverSeen) {
  const test::Slot gone = test::PublishSlot(segment_, test::MakeSlot("gone", 3, 4));
  Adopt();
  Pass();
  segment_.Retire(gone.index);
  segment_.Release(gone.index, gone.block);
  FreezeLines()[0] = {
      .serial = 77, .order = 1, .replay = 5, .trigger = 1, .live = 0, .reserved = {}};
  FreezeLines()[3] = {
      .serial = 9, .order = 55, .replay = 2, .trigger = 2, .live = 1, .reserved = {}};
  attached_->CheckProducer();
  ASSERT_EQ(sink_.freezes.size(), 2u);
  EXPECT_EQ(sink_.freezes[0].slot->probe, "gone");
  EXPECT_EQ(sink_.freezes[0].device, 0u);
  EXPECT_EQ(sink_.freezes[1].slot->probe, "");
  EXPECT_EQ(sink_.freezes[1].slot->session, sink_.freezes[0].slot->session);
  EXPECT_EQ(sink_.freezes[1].device, 3u);
  EXPECT_TRUE(sink_.freezes[1].live);
}

// What is not yet on its way to the disk stays in the ring if the daemon dies.
TEST_F(PassedOver, RowsThatTheJobHasNotSentAreMissingWhenItIsGoneAndNotBefore) {
  test::PublishSlot(segment_, test::MakeSlot("a", 3, 4));
  auto& shared =
      *reinterpret_cast<layout::NotSeenBlock*>(segment_.mapping(0).data + layout::kNotSeenOffset);
  shared.rows_begun = 5;
  shared.rows_sent = 3;
  Adopt();
  attached_->Refresh();
  EXPECT_TRUE(sink_.not_seen.empty());
  segment_.Close(/*unlink=*/false);
  attached_->CheckProducer();
  ASSERT_FALSE(attached_->alive());
  ASSERT_EQ(sink_.not_seen.size(), 1u);
  EXPECT_EQ(sink_.not_seen[0].kind, layout::NotSeenKind::kNeverSent);
  EXPECT_EQ(sink_.not_seen[0].count, 2u);
}

TEST_F(PassedOver, TheCreditMovesWhenTheSinksAreFlushed) {
  const test::Slot slot = test::PublishSlot(segment_, test::MakeSlot("a", 3, 4));
  ring::SlotRingWriter writer(slot.block.data, segment_.producer(), segment_.gate());
  const ring::SlotRingReader reader = segment_.OpenSlot(slot.index, slot.block);
  Adopt();
  std::vector<std::uint64_t> credits, consumed;
  sink_.on_consume = [&](const pipeline::Delivery&) { consumed.push_back(reader.consumed()); };
  sink_.on_flush = [&] { credits.push_back(reader.consumed()); };
  test::WriteNumbers(writer, 1);
  test::WriteNumbers(writer, 2);
  EXPECT_TRUE(Pass());
  EXPECT_EQ(reader.consumed(), 1u);
  EXPECT_TRUE(Pass());
  EXPECT_EQ(reader.consumed(), 2u);
  EXPECT_THAT(consumed, testing::ElementsAre(0, 1));
  EXPECT_THAT(credits, testing::ElementsAre(0, 1));
}

// A job that captures again and again fills neither the registry nor what keeps its values.
TEST_F(PassedOver, TheOldestOfManyGoneSlotsAreForgottenEverywhere) {
  constexpr std::size_t kShown = 256, kMore = 3;
  Adopt();
  for (std::size_t i = 1; i <= kShown + kMore; ++i) {
    const test::Slot slot = test::PublishSlot(segment_, test::MakeSlot(std::to_string(i), 3, 4));
    Pass();
    segment_.Retire(slot.index);
    segment_.Release(slot.index, slot.block);
    Pass();
  }
  EXPECT_THAT(sink_.forgotten, testing::ElementsAre("1", "2", "3"));
  EXPECT_EQ(registry_.Slots(registry_.Sessions().front().session).size(), kShown);
}

// Every value of a slot names the slot: no value of the new slot is shown as the old one's.
TEST_F(PassedOver, ASlotThatTakesOverABlockIsNeverReadAsTheEarlierOne) {
  constexpr int kSlots = 400;
  std::uint64_t wrong = 0;
  std::map<std::string, std::uint64_t> seen;
  sink_.on_consume = [&](const pipeline::Delivery& delivery) {
    if (delivery.payload == nullptr) return;
    std::int32_t value = 0;
    std::memcpy(&value, delivery.payload->data(), sizeof(value));
    const std::string& probe = delivery.snapshot->slot->probe;
    wrong += probe != std::to_string(value / 10);
    std::uint64_t& last = seen[probe];
    wrong += delivery.snapshot->ordinal <= last;
    last = delivery.snapshot->ordinal;
  };
  Adopt();
  std::atomic<bool> done = false;
  std::thread job([&] {
    for (int i = 1; i <= kSlots; ++i) {
      const test::Slot slot = test::PublishSlot(segment_, test::MakeSlot(std::to_string(i), 3, 4));
      ring::SlotRingWriter writer(slot.block.data, segment_.producer(), segment_.gate());
      for (int value = 1; value <= 6; ++value) test::WriteNumbers(writer, i * 10 + value);
      segment_.Retire(slot.index);
      segment_.Release(slot.index, slot.block);
    }
    const test::Slot last = test::PublishSlot(segment_, test::MakeSlot("999", 3, 4));
    ring::SlotRingWriter writer(last.block.data, segment_.producer(), segment_.gate());
    test::WriteNumbers(writer, 9990);
    done = true;
  });
  while (!done) Pass();
  job.join();
  while (Pass()) {
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(seen["999"], 1u);
}

// --- a job that runs for days, whose GPU's clock has drifted
// --------------------------------------

class OldJob : public PassedOver {
 protected:
  static constexpr std::int64_t kSecond = 1'000'000'000;
  static constexpr std::int64_t kLag = 3600 * kSecond;

  void Publish(layout::Policy policy) {
    auto* header = reinterpret_cast<layout::SegmentHeader*>(segment_.mapping(0).data);
    header->created_ns -= 10 * 86'400 * kSecond;
    auto registration = test::MakeSlot("a", 3, 4, policy);
    test::PutIntoBody(&registration);
    writer_.emplace(test::PublishSlot(segment_, registration).block.data, segment_.producer());
    writer_->fake_lag_ns = kLag;
    sink_.on_consume = [this](const pipeline::Delivery& delivery) {
      ages_.push_back(layout::RealtimeNs() - delivery.snapshot->timestamp_ns);
    };
  }
  void Write(int count) {
    const std::int32_t values[3] = {};
    for (int i = 0; i < count; ++i) {
      writer_->BeginReplay();
      writer_->Run(std::as_bytes(std::span(values)));
    }
  }
  auto IsNow() const { return testing::AllOf(testing::Ge(0), testing::Lt(kLag / 2)); }

  std::optional<test::BodyWriter> writer_;
  std::vector<std::int64_t> ages_;
};

TEST_F(OldJob, WhatIsInTheRingWaitsForACommitThatTellsTheTime) {
  Publish(layout::Policy::kOverwrite);
  Write(2);
  Adopt();
  EXPECT_TRUE(Pass());
  EXPECT_THAT(ages_, testing::IsEmpty());
  Write(1);
  while (Pass()) {
  }
  EXPECT_THAT(ages_, testing::ElementsAre(IsNow(), IsNow(), IsNow()));
  attached_->Refresh();
  EXPECT_THAT(layout::RealtimeNs() - attached_->last_timestamp_ns(), IsNow());
  EXPECT_EQ(sink_.lost, 0u);
}

TEST_F(OldJob, WhatIsInTheRingIsReadAlsoIfTheJobStandsStill) {
  Publish(layout::Policy::kOverwrite);
  Write(2);
  Adopt();
  EXPECT_TRUE(test::WaitUntil([&] {
    Pass();
    return ages_.size() == 2;
  }));
  EXPECT_THAT(ages_, testing::Each(testing::Ge(kLag)));
}

TEST_F(OldJob, AFullRingWhoseWriterWaitsIsReadAtOnce) {
  Publish(layout::Policy::kWait);
  Write(4);
  Adopt();
  Pass();
  EXPECT_EQ(ages_.size(), 1u);
}

TEST_F(OldJob, TimestampsOfASlotDoNotRunBackwards) {
  Publish(layout::Policy::kOverwrite);
  writer_->fake_lag_ns = 0;
  std::vector<std::int64_t> times;
  sink_.on_consume = [&](const pipeline::Delivery& delivery) {
    times.push_back(delivery.snapshot->timestamp_ns);
  };
  Adopt();
  for (const std::int64_t lag_ns : {kSecond, -kSecond, -kLag, kLag, std::int64_t{0}}) {
    writer_->fake_lag_ns = lag_ns;
    for (int i = 0; i < 3; ++i) {
      Pass();
      Write(1);
    }
  }
  while (Pass()) {
  }
  EXPECT_EQ(times.size(), 15u);
  EXPECT_TRUE(std::ranges::is_sorted(times));
  EXPECT_LE(times.back(), layout::RealtimeNs());
}

}  // namespace
}  // namespace cgdebug::ingest
