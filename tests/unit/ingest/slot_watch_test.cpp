// Which slots of a job of many a look finds, with a real segment of this process and a clock of the
// test's own.
#include "daemon/ingest/slot/slot_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/ingest/segment_slots.h"
#include "tests/support/ring/body_ring.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::ingest {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

class EmptySink final : public pipeline::Sink {
 public:
  void Consume(const pipeline::Delivery&, pipeline::SlotFeedback&) override {}
};

constexpr std::size_t kPerGraph = 400;

// Slots are numbered in the order of their registration, from 0.
class WatchedSlots : public ::testing::Test {
 protected:
  void TearDown() override { segment_.Close(/*unlink=*/true); }

  void AddGraph(std::uint64_t graph_id, std::size_t count = kPerGraph, bool in_body = false) {
    for (std::size_t i = 0; i < count; ++i) {
      auto registration = test::MakeSlot("a", 3, 4);
      registration.order = slots_.size() + 1;
      registration.graph_id = graph_id;
      if (in_body) test::PutIntoBody(&registration);
      slots_.push_back(test::PublishSlot(segment_, registration));
      writers_.emplace_back(slots_.back().block.data, segment_.producer(), segment_.gate());
    }
  }
  // Three graphs that fill a job.
  void AddGraphs() {
    for (std::uint64_t graph = 1; graph <= 3; ++graph) AddGraph(graph);
  }
  void Attach() {
    std::string reason;
    view_ = ring::SegmentView::Attach(segment_.name(), &reason);
    ASSERT_NE(view_, nullptr) << reason;
    watched_ = std::make_unique<SegmentSlots>(
        view_.get(), Destination{&registry_, &controls_, &reads_, &payloads_, &sink_},
        registry_.AddSession(
            pipeline::MakeSessionIdentity(view_->name(), view_->uuid(), view_->header())));
    watched_->Scan();
  }
  void Run(std::size_t slot) { test::WriteNumbers(writers_[slot], 1); }

  // The numbers of the slots that a look finds, which are read to their end.
  std::vector<std::size_t> Look(milliseconds later, bool all = false) {
    now_ += later;
    std::vector<SlotConsumer*> found;
    watched_->watch().Look({now_, 0, 0, /*is_active=*/later.count() == 0}, all, &found);
    std::vector<std::size_t> numbers;
    for (SlotConsumer* slot : found) {
      numbers.push_back(slot->slot()->registration.order - 1);
      while (slot->HasWork()) {
        slot->Prepare();
        slot->Commit();
      }
    }
    return numbers;
  }
  // Nothing moves for long.
  void LetRest() {
    Look(milliseconds(0));
    Look(milliseconds(0));
    Look(SlotWatch::kRestAfter + milliseconds(1));
    Look(SlotWatch::kRound);  // the turns are at their beginning again
  }

  ring::SegmentWriter segment_{ring::Identity{}};
  std::vector<test::Slot> slots_;
  std::vector<ring::SlotRingWriter> writers_;
  pipeline::Registry registry_;
  pipeline::ControlQueue controls_;
  pipeline::RingReads reads_;
  pipeline::PayloadPool payloads_{1 << 20};
  EmptySink sink_;
  std::unique_ptr<ring::SegmentView> view_;
  std::unique_ptr<SegmentSlots> watched_;
  SlotWatch::Clock::time_point now_ = SlotWatch::Clock::time_point(std::chrono::hours(1));
};

TEST_F(WatchedSlots, AGraphThatWasAtRestIsFoundWholeAsSoonAsItRuns) {
  AddGraphs();
  Attach();
  LetRest();
  std::vector<std::size_t> expected;
  for (std::size_t slot = kPerGraph; slot < 2 * kPerGraph; ++slot) {
    Run(slot);
    expected.push_back(slot);
  }
  EXPECT_EQ(Look(milliseconds(0)), expected);
  Run(kPerGraph + 5);  // it is awake
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(kPerGraph + 5));
}

TEST_F(WatchedSlots, TheFirstSlotOfAReplayWakesTheOthers) {
  AddGraphs();
  Attach();
  LetRest();
  Run(0);
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(0));
  Run(7);
  Run(8);
  EXPECT_THAT(Look(SlotWatch::kRestAfter), ElementsAre(7, 8));
}

// A replay may be under way when its graph comes to rest.
TEST_F(WatchedSlots, TheLastSlotOfAReplayWakesTheOthers) {
  AddGraphs();
  Attach();
  LetRest();
  Run(7);
  EXPECT_THAT(Look(milliseconds(0)), IsEmpty());
  Run(kPerGraph - 1);
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(7, kPerGraph - 1));
}

TEST_F(WatchedSlots, ASlotThatRunsAloneIsFoundInItsTurn) {
  AddGraphs();
  Attach();
  LetRest();
  Run(kPerGraph + 7);
  EXPECT_THAT(Look(milliseconds(0)), IsEmpty());
  EXPECT_FALSE(watched_->watch().HasSeenAll());
  EXPECT_THAT(Look(SlotWatch::kRound), ElementsAre(kPerGraph + 7));
  EXPECT_TRUE(watched_->watch().HasSeenAll());
}

TEST_F(WatchedSlots, EverySlotAtRestHasItsTurnOnceInARound) {
  AddGraphs();
  Attach();
  LetRest();
  for (const std::size_t alone : {std::size_t{1}, kPerGraph + 200, 3 * kPerGraph - 2}) Run(alone);
  std::size_t found = 0;
  for (milliseconds passed(0); passed < SlotWatch::kRound; passed += milliseconds(1)) {
    found += Look(milliseconds(1)).size();
  }
  EXPECT_EQ(found, 3u);
  EXPECT_TRUE(watched_->watch().HasSeenAll());
}

TEST_F(WatchedSlots, ALookAtAllFindsASlotThatRunsAlone) {
  AddGraphs();
  Attach();
  LetRest();
  Run(7);
  EXPECT_THAT(Look(milliseconds(0), /*all=*/true), ElementsAre(7));
  EXPECT_TRUE(watched_->watch().HasSeenAll());
}

TEST_F(WatchedSlots, SlotsOfSeveralGraphsAreFoundInGraphOrder) {
  AddGraph(2);
  AddGraph(1);
  AddGraph(2);
  Attach();
  for (const std::size_t slot : {2 * kPerGraph, kPerGraph, std::size_t{0}}) Run(slot);
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(0, kPerGraph, 2 * kPerGraph));
}

TEST_F(WatchedSlots, ASlotWhoseProbeWasClosedWakesNobodySoAnotherOneDoes) {
  AddGraphs();
  const auto disarm = [&](std::size_t slot) {
    reinterpret_cast<layout::SlotHead*>(slots_[slot].block.data + layout::kSlotHeadOffset)
        ->disarmed = 1;
  };
  disarm(0);
  disarm(kPerGraph - 1);
  Attach();
  LetRest();
  Run(1);
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(1));
}

TEST_F(WatchedSlots, AGraphWhoseSlotsNeedNotRunInAReplayDoesNotRest) {
  AddGraphs();
  AddGraph(4, 50, /*in_body=*/true);
  Attach();
  LetRest();
  test::BodyWriter body(slots_[3 * kPerGraph + 9].block.data, segment_.producer());
  const std::int32_t values[3] = {1, 2, 3};
  body.BeginReplay();
  body.Run(std::as_bytes(std::span(values)));
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(3 * kPerGraph + 9));
}

TEST_F(WatchedSlots, EagerSlotsDoNotRest) {
  AddGraphs();
  AddGraph(0, 50);
  Attach();
  LetRest();
  Run(3 * kPerGraph + 9);
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(3 * kPerGraph + 9));
}

TEST_F(WatchedSlots, AJobOfFewSlotsHasNoneAtRest) {
  AddGraph(1);
  Attach();
  LetRest();
  Run(7);
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(7));
}

TEST_F(WatchedSlots, ANewGraphLeavesTheOthersAtRest) {
  AddGraphs();
  Attach();
  LetRest();
  AddGraph(4, 50);
  Run(7);
  Run(3 * kPerGraph + 9);
  watched_->Scan();
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(3 * kPerGraph + 9));
  Run(0);
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(0, 7));
}

TEST_F(WatchedSlots, AGraphThatLosesASlotIsLookedAtWhole) {
  AddGraphs();
  Attach();
  LetRest();
  Run(7);
  segment_.Retire(slots_[8].index);
  segment_.Release(slots_[8].index, slots_[8].block);
  watched_->Scan();
  EXPECT_THAT(Look(milliseconds(0)), ElementsAre(7));
}

}  // namespace
}  // namespace cgdebug::ingest
