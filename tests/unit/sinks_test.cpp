#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/sinks/compare_sink.h"
#include "daemon/sinks/model_sink.h"
#include "daemon/sinks/print_sink.h"
#include "tests/support/model_fixture.h"

namespace cgdebug::sinks {
namespace {

using layout::VerdictState;
using test::Bytes;
using test::FakeFeedback;
using test::MakeDelivery;
using test::MakeSession;
using testing::HasSubstr;

class CompareSinkTest : public testing::Test {
 protected:
  // Expects {1, 1} every `every` replays.
  void Open(std::uint32_t every = 1, std::uint32_t flags = 0) {
    pipeline::SlotIdentity identity = test::MakeSlotIdentity(MakeSession("1"), "a", 1);
    identity.registration.flags |= flags;
    identity.registration.actions = layout::kActionCompare | layout::kActionRecord;
    identity.registration.record_every = 1;
    identity.registration.compare_every = every;
    slot_ = std::make_shared<const pipeline::SlotIdentity>(identity);
    feedback_.expected = Bytes({1, 1});
    sink_.OpenSlot(slot_, feedback_);
  }
  void Replay(std::uint64_t replay, float value = 1) {
    pipeline::Delivery delivery = MakeDelivery(slot_, replay, {value, value});
    delivery.comparison =
        pipeline::CompareWithExpected(*slot_, *delivery.payload, feedback_.expected);
    sink_.Consume(delivery, feedback_);
  }
  // An iteration of a conditional body.
  void Run(std::uint64_t ordinal, std::uint64_t replay, float value = 1) {
    pipeline::Delivery delivery = MakeDelivery(slot_, replay, {value, value});
    pipeline::Snapshot snapshot = *delivery.snapshot;
    snapshot.ordinal = ordinal;
    delivery.snapshot = std::make_shared<const pipeline::Snapshot>(snapshot);
    delivery.comparison =
        pipeline::CompareWithExpected(*slot_, *delivery.payload, feedback_.expected);
    sink_.Consume(delivery, feedback_);
  }
  const layout::Verdict& verdict() const { return feedback_.shared; }

  pipeline::EventLog events_;
  CompareSink sink_{&events_};
  FakeFeedback feedback_;
  pipeline::SlotPtr slot_;
};

TEST_F(CompareSinkTest, PassesWhatMatchesAndNothingBeforeTheFirst) {
  Open();
  EXPECT_EQ(verdict().state, VerdictState::kNone);
  Replay(1);
  Replay(2);
  EXPECT_EQ(verdict().state, VerdictState::kPass);
  EXPECT_EQ(verdict().compared, 2u);
  EXPECT_EQ(verdict().covered_replay, 2u);
}

TEST_F(CompareSinkTest, EveryIterationIsComparedAndABodyThatDidNotRunIsNotMissed) {
  Open(/*every=*/1, layout::kSlotInBody);
  Run(1, 1);
  Run(2, 5);
  Run(3, 5);
  sink_.CloseSlot(slot_, 9, feedback_);
  EXPECT_EQ(verdict().state, VerdictState::kPass);
  EXPECT_EQ(verdict().compared, 3u);
  EXPECT_EQ(verdict().lost, 0u);
}

TEST_F(CompareSinkTest, IterationsThatWereLostOrKeptBackAreMissedOnce) {
  Open(/*every=*/1, layout::kSlotInBody);
  Run(1, 1);
  sink_.Lose({.slot = slot_, .count = 2, .last_ordinal = 3, .last_replay = 1, .before_replay = 1});
  Run(4, 1);
  EXPECT_EQ(verdict().lost, 2u);
  EXPECT_EQ(verdict().state, VerdictState::kError);
  feedback_.kept_back = 3;
  sink_.Lose({.slot = slot_, .count = 1, .last_ordinal = 5, .last_replay = 2});
  sink_.CloseSlot(slot_, 2, feedback_);
  EXPECT_EQ(verdict().lost, 6u);
  EXPECT_EQ(verdict().compared, 2u);
}

TEST_F(CompareSinkTest, ReplaysThatPassedOnTheGpuAreNotMissed) {
  Open(/*every=*/1, layout::kSlotComparesOnDevice);
  EXPECT_EQ(WithPassed(verdict(), 16, false).state, VerdictState::kPass);
  Run(1, 17, 2);
  Run(2, 40);  // the GPU was not sure
  sink_.CloseSlot(slot_, 100, feedback_);
  const layout::Verdict whole = WithPassed(verdict(), 98, false);
  EXPECT_EQ(whole.state, VerdictState::kFail);
  EXPECT_EQ(whole.compared, 100u);
  EXPECT_EQ(whole.mismatched, 1u);
  EXPECT_EQ(whole.lost, 0u);
  EXPECT_EQ(whole.first_failed_replay, 17u);
}

TEST_F(CompareSinkTest, WhatTheGpuSentAndNobodyHasReadYetIsNoPass) {
  Open(/*every=*/1, layout::kSlotComparesOnDevice);
  EXPECT_EQ(WithPassed(verdict(), 16, true).state, VerdictState::kNone);
  Run(1, 17);  // it matched after all
  EXPECT_EQ(WithPassed(verdict(), 16, true).state, VerdictState::kNone);
  EXPECT_EQ(WithPassed(verdict(), 16, false).state, VerdictState::kPass);
  Run(2, 18, 2);
  EXPECT_EQ(WithPassed(verdict(), 16, true).state, VerdictState::kFail);
}

TEST_F(CompareSinkTest, WhatTheGpuSentAndNobodyComparedIsMissed) {
  Open(/*every=*/1, layout::kSlotComparesOnDevice);
  Run(1, 3);
  sink_.Lose({.slot = slot_, .count = 2, .last_ordinal = 3, .last_replay = 9});
  sink_.CloseSlot(slot_, 9, feedback_);
  const layout::Verdict whole = WithPassed(verdict(), 6, false);
  EXPECT_EQ(whole.state, VerdictState::kError);
  EXPECT_EQ(whole.lost, 2u);
}

TEST_F(CompareSinkTest, TheFirstSnapshotIsComparedWithNothing) {
  Open(/*every=*/1, layout::kCompareFirst);
  Replay(1, 7);
  EXPECT_EQ(verdict().compared, 0u);
  EXPECT_EQ(verdict().lost, 0u);
  EXPECT_EQ(verdict().state, VerdictState::kNone);
  Replay(2);
  EXPECT_EQ(verdict().compared, 1u);
  EXPECT_EQ(verdict().state, VerdictState::kPass);
}

TEST(ByDevice, TheCountsAreTheDevicesAndTheWordsTheDaemons) {
  layout::SlotHead head = {};
  EXPECT_EQ(ByDevice({}, head, 0).state, VerdictState::kNone);
  head.compared = 7;
  layout::Verdict daemon;
  daemon.state = VerdictState::kError;
  daemon.lost = 3;  // values that it could not read: the GPU has judged them
  EXPECT_EQ(ByDevice(daemon, head, 0).state, VerdictState::kPass);
  EXPECT_EQ(ByDevice(daemon, head, 0).lost, 0u);
  head.failed = 2;
  EXPECT_EQ(ByDevice(daemon, head, 4).state, VerdictState::kFail);
  EXPECT_EQ(ByDevice(daemon, head, 4).first_failed_replay, 4u);
  EXPECT_EQ(ByDevice(daemon, head, 4).text, "");
  daemon.state = VerdictState::kFail;
  daemon.text = "words";
  daemon.first_failed_replay = 6;  // it lost replay 4
  EXPECT_EQ(ByDevice(daemon, head, 4).text, "");
  daemon.first_failed_replay = 4;
  EXPECT_EQ(ByDevice(daemon, head, 4).text, "words");
}

TEST_F(CompareSinkTest, AFailureStaysWithItsFirstReplayAndText) {
  Open();
  Replay(1);
  Replay(2, 5);
  const std::string text = verdict().text;
  Replay(3, 6);
  Replay(9);  // 4 to 8 are lost
  EXPECT_EQ(verdict().state, VerdictState::kFail);
  EXPECT_EQ(verdict().first_failed_replay, 2u);
  EXPECT_EQ(verdict().text, text);
  EXPECT_EQ(verdict().mismatched, 2u);
  EXPECT_EQ(verdict().compared, 4u);
  EXPECT_EQ(verdict().lost, 5u);
}

TEST_F(CompareSinkTest, CountsMissedReplaysOfTheComparisonOnly) {
  Open(/*every=*/10);
  Replay(1);
  Replay(2, 99);  // not wanted: 1, 11, 21, ... are
  Replay(35, 99);
  EXPECT_EQ(verdict().compared, 1u);
  EXPECT_EQ(verdict().lost, 3u) << "11, 21 and 31";
  EXPECT_EQ(verdict().state, VerdictState::kError);
  EXPECT_THAT(verdict().text, HasSubstr("3 snapshots could not be compared"));
  Replay(41);
  EXPECT_EQ(verdict().lost, 3u);
  EXPECT_EQ(verdict().compared, 2u);
}

TEST_F(CompareSinkTest, DoesNotCountAReplayTwiceThatTheVerdictCoversAlready) {
  feedback_.shared.state = VerdictState::kPass;
  feedback_.shared.compared = 5;
  feedback_.shared.covered_replay = 5;
  Open();
  Replay(5, 99);  // its credit was never given: the daemon before was killed in between
  EXPECT_EQ(verdict().compared, 5u);
  EXPECT_EQ(verdict().state, VerdictState::kPass);
  Replay(6);
  EXPECT_EQ(verdict().compared, 6u);
  EXPECT_EQ(verdict().lost, 0u);
}

TEST_F(CompareSinkTest, IgnoresSnapshotsAnEarlierDaemonConsumed) {
  Open();
  pipeline::Delivery delivery = MakeDelivery(slot_, 1, {9, 9});
  delivery.seen_before = true;
  sink_.Consume(delivery, feedback_);
  EXPECT_EQ(verdict().compared, 0u);
  EXPECT_EQ(verdict().state, VerdictState::kNone);
}

TEST_F(CompareSinkTest, DoesNotTrustAVerdictThatWasTorn) {
  feedback_.shared.torn = true;
  Open();
  EXPECT_EQ(verdict().state, VerdictState::kError);
  Replay(7);
  EXPECT_EQ(verdict().state, VerdictState::kError);
  EXPECT_THAT(verdict().text, HasSubstr("killed while it wrote"));
  Replay(8, 9);
  EXPECT_EQ(verdict().state, VerdictState::kFail) << "a mismatch is certain all the same";
}

TEST_F(CompareSinkTest, CountsTheRestAsMissedWhenTheJobEnds) {
  Open();
  Replay(1);
  sink_.CloseSlot(slot_, /*last_replay=*/3, feedback_);
  EXPECT_EQ(verdict().lost, 2u);
  EXPECT_EQ(verdict().state, VerdictState::kError);
}

TEST_F(CompareSinkTest, ASnapshotWithoutValuesIsMissed) {
  Open();
  Replay(1);
  pipeline::Snapshot snapshot = *MakeDelivery(slot_, 2, {1, 1}).snapshot;
  snapshot.has_values = false;
  sink_.Consume({std::make_shared<const pipeline::Snapshot>(snapshot), nullptr}, feedback_);
  EXPECT_EQ(verdict().state, VerdictState::kError);
  EXPECT_EQ(verdict().lost, 1u);
  EXPECT_EQ(verdict().compared, 1u);
}

TEST_F(CompareSinkTest, ASnapshotThatCannotBeComparedIsMissed) {
  Open();
  pipeline::Delivery delivery = MakeDelivery(slot_, 1, {1, 1});
  delivery.comparison =
      std::make_shared<const Result<numerics::CompareResult>>(Error{"no such dtype"});
  sink_.Consume(delivery, feedback_);
  EXPECT_EQ(verdict().state, VerdictState::kError);
  EXPECT_EQ(verdict().lost, 1u);
  EXPECT_EQ(verdict().compared, 0u);
  EXPECT_THAT(verdict().text, HasSubstr("no such dtype"));
}

TEST_F(CompareSinkTest, WithoutAnExpectedTensorEveryReplayIsMissed) {
  Open();
  sink_.ForgetSlot(slot_);
  feedback_.expected.clear();
  sink_.OpenSlot(slot_, feedback_);
  for (const std::uint64_t replay : {1, 2})
    sink_.Consume(MakeDelivery(slot_, replay, {1, 1}), feedback_);
  EXPECT_EQ(verdict().state, VerdictState::kError);
  EXPECT_EQ(verdict().lost, 2u);
  EXPECT_THAT(verdict().text, HasSubstr("expected tensor cannot be read"));
}

TEST_F(CompareSinkTest, ComparesWhatTheLiveControlAskedForWhateverItsPeriodIs) {
  Open(/*every=*/10);
  pipeline::Delivery delivery = MakeDelivery(slot_, 3, {9, 9});
  pipeline::Snapshot snapshot = *delivery.snapshot;
  snapshot.forced = true;
  delivery.snapshot = std::make_shared<const pipeline::Snapshot>(snapshot);
  delivery.comparison =
      pipeline::CompareWithExpected(*slot_, *delivery.payload, feedback_.expected);
  sink_.Consume(delivery, feedback_);
  EXPECT_EQ(verdict().state, VerdictState::kFail);
  EXPECT_EQ(verdict().first_failed_replay, 3u);
  EXPECT_EQ(verdict().lost, 1u) << "replay 1";
}

// --- print ---------------------------------------------------------------------------------------

pipeline::SlotPtr PrintingSlot(std::uint32_t invocation, std::int32_t rank, std::uint32_t max_items,
                               bool summary) {
  auto session = std::make_shared<pipeline::SessionIdentity>(test::MakeIdentity("1"));
  session->rank = rank;
  pipeline::SlotIdentity identity = test::MakeSlotIdentity(session, "blk3.attn", 1, 4);
  identity.registration.actions = layout::kActionPrint;
  identity.registration.print_every = 2;
  identity.registration.print_max_items = max_items;
  identity.registration.invocation = invocation;
  identity.registration.flags = summary ? layout::kPrintSummary : 0;
  return std::make_shared<const pipeline::SlotIdentity>(identity);
}

std::string Render(const pipeline::SlotPtr& slot) {
  const pipeline::Delivery delivery = MakeDelivery(slot, 12, {1, 2, 3, 4});
  return RenderPrint(*delivery.snapshot, delivery.payload);
}

TEST(PrintLine, SaysReplayProbeSummaryAndValues) {
  EXPECT_THAT(Render(PrintingSlot(0, -1, 0, true)),
              testing::StartsWith("[cgdebug] @12 blk3.attn  f32[4]  n=4 x∈["));
  EXPECT_THAT(Render(PrintingSlot(2, 3, 0, true)),
              testing::StartsWith("[cgdebug] r3 @12 blk3.attn#2  f32[4]"));
  EXPECT_THAT(Render(PrintingSlot(0, -1, 4, true)), testing::EndsWith("\n          [1, 2, 3, 4]"));
  EXPECT_EQ(Render(PrintingSlot(0, -1, 4, false)), "[cgdebug] @12 blk3.attn  f32[4]  [1, 2, 3, 4]");
}

TEST(PrintSink, PrintsItsReplaysOnlyAndCountsThem) {
  pipeline::EventLog events;
  PrintSink sink(&events);
  FakeFeedback feedback;
  const pipeline::SlotPtr slot = PrintingSlot(0, -1, 4, true);
  for (std::uint64_t replay = 1; replay <= 4; ++replay) {
    sink.Consume(MakeDelivery(slot, replay, {1, 2, 3, 4}), feedback);
  }
  EXPECT_EQ(feedback.printed, 2u) << "replays 1 and 3";
  EXPECT_EQ(feedback.shown, 0u) << "no such job, no terminal";
  pipeline::EventLog::Cursor end;
  EXPECT_EQ(events.All(&end).size(), 2u);
}

// --- what clients are shown, and when ------------------------------------------------------------

// Looks at the model while the pipeline is in the middle of a call.
class LookingSink final : public pipeline::Sink {
 public:
  explicit LookingSink(std::function<void()> look) : look_(std::move(look)) {}
  void Consume(const pipeline::Delivery&, pipeline::SlotFeedback&) override { look_(); }
  void Lose(const pipeline::Gap&) override { look_(); }
  void EndSession(const pipeline::SessionPtr&, bool) override { look_(); }

 private:
  std::function<void()> look_;
};

class Shown : public testing::Test {
 protected:
  Shown() {
    registry_.SetSlot(slot_, {}, 1, false);
    shown_.OpenSession(session_);
  }
  void Look() {
    events_seen_ = EventCount();
    has_last_ = registry_.Slots(session_).at(0).last != nullptr;
    state_ = registry_.Sessions().at(0).state;
  }
  std::size_t EventCount() {
    pipeline::EventLog::Cursor end;
    return events_.All(&end).size();
  }

  pipeline::Registry registry_;
  pipeline::EventLog events_;
  LookingSink sink_{[this] { Look(); }};
  ModelSink shown_{&registry_, &events_, &sink_};
  FakeFeedback feedback_;
  pipeline::SessionPtr session_ = registry_.AddSession(test::MakeIdentity("1"));
  pipeline::SlotPtr slot_ = test::MakeSlot(session_, "x", 1);
  std::size_t events_seen_ = 0;
  bool has_last_ = false;
  pipeline::SessionState state_ = pipeline::SessionState::kAlive;
};

TEST_F(Shown, ASnapshotsEventComesBeforeThoseAboutItAndTheSnapshotIsTheLastWhenMemoryHasIt) {
  shown_.Consume(MakeDelivery(slot_, 1, {1, 2}), feedback_);
  EXPECT_EQ(events_seen_, 2u) << "the session's, the snapshot's";
  EXPECT_FALSE(has_last_);
  ASSERT_NE(registry_.Slots(session_).at(0).last, nullptr);
  pipeline::Delivery again = MakeDelivery(slot_, 1, {1, 2});
  again.seen_before = true;
  shown_.Consume(again, feedback_);
  EXPECT_EQ(EventCount(), 2u) << "an earlier daemon told of it";
}

TEST_F(Shown, ALossAndAnEndAreToldWhenTheSinksKnowOfThem) {
  shown_.Lose({.slot = slot_, .count = 3});
  EXPECT_EQ(events_seen_, 1u);
  EXPECT_EQ(EventCount(), 2u);
  pipeline::SessionState at_event = pipeline::SessionState::kAlive;
  events_.SetListener([&] { at_event = registry_.Sessions().at(0).state; });
  shown_.EndSession(session_, /*died=*/true);
  EXPECT_EQ(state_, pipeline::SessionState::kAlive);
  EXPECT_EQ(at_event, pipeline::SessionState::kDied) << "before a client is woken";
  shown_.ForgetSession(session_);
  EXPECT_TRUE(registry_.Sessions().empty());
  EXPECT_EQ(EventCount(), 0u);
}

pipeline::SlotPtr RowOf(const pipeline::SessionPtr& session, const std::string& op) {
  pipeline::SlotIdentity row = test::MakeSlotIdentity(session, "row", 2);
  row.index += layout::kMaxSlots;
  row.op = op;
  return std::make_shared<const pipeline::SlotIdentity>(row);
}

TEST_F(Shown, WhatTheRowsOfAPageLostIsToldWhenThePageIsClosedAlthoughNothingElseComes) {
  const pipeline::SlotPtr row = RowOf(session_, "1 aten.mm.default");
  shown_.Lose({.slot = row, .count = 3});
  EXPECT_EQ(EventCount(), 1u) << "other rows of the page may have lost the same";
  shown_.CloseSlot(row, 3, feedback_);
  EXPECT_EQ(EventCount(), 2u);
}

TEST_F(Shown, LossesOfTheSameRowsKeepOneListOfThem) {
  const pipeline::SlotPtr rows[] = {RowOf(session_, "1 aten.mm.default"),
                                    RowOf(session_, "2 aten.mm.default")};
  for (std::uint64_t replay = 1; replay <= 3; ++replay) {
    const int count = replay == 3 ? 1 : 2;
    for (int i = 0; i < count; ++i) {
      shown_.Lose({.slot = rows[i], .count = 1, .before_replay = replay});
    }
  }
  shown_.Flush();
  pipeline::EventLog::Cursor end;
  std::vector<pipeline::Loss> losses;
  for (const pipeline::EventPtr& event : events_.All(&end)) {
    if (const auto* loss = std::get_if<pipeline::Loss>(&event->what)) losses.push_back(*loss);
  }
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_THAT(*losses[0].rows, testing::ElementsAreArray(rows));
  EXPECT_EQ(losses[0].rows, losses[1].rows);
  EXPECT_THAT(*losses[2].rows, testing::ElementsAre(rows[0]));
}

TEST_F(Shown, ARowThatSaysWhatALogDoesNotShowIsNoEvent) {
  const pipeline::SlotPtr gap = RowOf(session_, "gap job capture 3 has no log");
  shown_.Consume(MakeDelivery(gap, 1, {1, 2}), feedback_);
  shown_.Lose({.slot = gap, .count = 1});
  shown_.Flush();
  EXPECT_EQ(EventCount(), 1u) << "the session's";
}

}  // namespace
}  // namespace cgdebug::sinks
