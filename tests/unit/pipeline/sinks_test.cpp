#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/sinks/compare_sink.h"
#include "daemon/sinks/model_sink.h"
#include "daemon/sinks/print_sink.h"
#include "daemon/sinks/replica_sink.h"
#include "tests/support/daemon/model_fixture.h"

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

TEST_F(CompareSinkTest, WhatWasKeptBackBeforeTheFirstLookIsMissedAndTheNextDaemonCountsItOnce) {
  feedback_.kept_back = 3;
  Open(/*every=*/1, layout::kSlotInBody);
  Run(1, 4);
  EXPECT_EQ(verdict().lost, 3u);
  EXPECT_EQ(verdict().state, VerdictState::kError);
  CompareSink next(&events_);
  next.OpenSlot(slot_, feedback_);
  next.CloseSlot(slot_, 4, feedback_);
  EXPECT_EQ(verdict().lost, 3u);
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

TEST_F(CompareSinkTest, WordsThatTheDaemonBeforeDidNotFinishAreSaidAgain) {
  feedback_.shared.state = VerdictState::kError;
  feedback_.shared.lost = 3;
  feedback_.shared.covered_replay = 3;
  Open();
  EXPECT_EQ(verdict().state, VerdictState::kError);
  EXPECT_THAT(verdict().text, HasSubstr("3 snapshots could not be compared"));
  Replay(4);
  EXPECT_EQ(verdict().state, VerdictState::kError);
  Replay(5, 9);
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

// A machine with the ranks of one run; "w" and "b" are replicas of all of them.
class ReplicaSinkTest : public testing::Test {
 protected:
  static constexpr const char* kNames[] = {"w", "b"};

  ReplicaSinkTest() {
    for (int rank = 0; rank < 3; ++rank) Start(rank, 3);
  }

  void Start(int rank, int ranks) {
    pipeline::SessionIdentity identity = test::MakeIdentity(std::to_string(rank + 1));
    identity.rank = rank;
    identity.world_size = identity.local_world_size = 3;
    identity.local_rank = rank;
    const pipeline::SessionPtr session = registry_.AddSession(identity);
    sessions_.push_back(session);
    sink_.OpenSession(session);
    slots_.emplace_back();
    for (const char* name : kNames) Open(rank, name, ranks);
  }
  pipeline::SlotPtr Open(int rank, const std::string& name, int ranks = 3) {
    const auto order = static_cast<std::uint64_t>(slots_[rank].size()) + 1;
    pipeline::SlotIdentity identity = test::MakeSlotIdentity(sessions_[rank], name, order);
    identity.shard = "R of [2] at (" + std::to_string(rank) + ") of ddp=" + std::to_string(ranks) +
                     ", from [0], replicas 0.." + std::to_string(ranks - 1);
    const auto slot = std::make_shared<const pipeline::SlotIdentity>(identity);
    registry_.SetSlot(slot, {}, 0, false);
    sink_.OpenSlot(slot, feedback_);
    slots_[rank].push_back(slot);
    return slot;
  }
  void Give(const pipeline::SlotPtr& slot, std::uint64_t step, float value,
            std::uint64_t ordinal = 0) {
    pipeline::Delivery delivery = MakeDelivery(slot, step, {value, 1});
    pipeline::Snapshot snapshot = *delivery.snapshot;
    snapshot.step = static_cast<std::int64_t>(step);
    if (ordinal != 0) snapshot.ordinal = ordinal;
    delivery.snapshot = std::make_shared<const pipeline::Snapshot>(snapshot);
    sink_.Consume(delivery, feedback_);
  }
  void Give(int rank, std::size_t slot, std::uint64_t step, float value) {
    Give(slots_[rank][slot], step, value);
  }
  // Two elements, with their values or their statistics alone.
  void GiveTwo(int rank, std::uint64_t step, float a, float b, bool with_values) {
    pipeline::Delivery delivery = MakeDelivery(slots_[rank][0], step, {a, b});
    pipeline::Snapshot snapshot = *delivery.snapshot;
    snapshot.step = static_cast<std::int64_t>(step);
    delivery.snapshot = std::make_shared<const pipeline::Snapshot>(snapshot);
    if (!with_values) delivery.payload = nullptr;
    sink_.Consume(delivery, feedback_);
  }
  // All slots of a rank at one step.
  void Step(int rank, std::uint64_t step) {
    for (std::size_t slot = 0; slot < slots_[rank].size(); ++slot) {
      Give(rank, slot, step, static_cast<float>(step));
    }
  }
  pipeline::ReplicaCounts Counts(int rank) {
    sink_.Flush();
    for (const pipeline::SessionRecord& record : registry_.Sessions()) {
      if (record.session == sessions_[rank]) return record.replicas;
    }
    return {};
  }
  // What was told, as "rank@step text".
  std::vector<std::string> Told() {
    std::vector<std::string> told;
    pipeline::EventLog::Missed missed;
    for (const pipeline::EventPtr& event : events_.Read(&cursor_, 1000, &missed)) {
      const auto& unequal = std::get<pipeline::Unequal>(event->what);
      told.push_back(std::to_string(event->session->rank) + "@" +
                     std::to_string(unequal.snapshot->step) + " " + unequal.snapshot->slot->probe +
                     " " + unequal.text);
    }
    return told;
  }

  // Notes who is told of what is found.
  struct Findings final : pipeline::Sink {
    void Consume(const pipeline::Delivery&, pipeline::SlotFeedback&) override {}
    void Found(const pipeline::Finding& finding) override { all.push_back(finding); }
    std::vector<pipeline::Finding> all;
  };

  pipeline::Registry registry_;
  pipeline::EventLog events_;
  pipeline::EventLog::Cursor cursor_;
  pipeline::ControlQueue controls_;
  Findings findings_;
  ReplicaSink::Clock::time_point now_ = {};
  ReplicaSink sink_{&registry_, &events_, &controls_, &findings_, [this] { return now_; }};
  FakeFeedback feedback_;
  std::vector<pipeline::SessionPtr> sessions_;
  std::vector<std::vector<pipeline::SlotPtr>> slots_;  // by rank
};

TEST_F(ReplicaSinkTest, HealthyReplicasAreComparedAndNothingIsTold) {
  for (std::uint64_t step = 1; step <= 100; ++step) {
    for (const int rank : {2, 0, 1}) Step(rank, step);
  }
  EXPECT_THAT(Told(), testing::IsEmpty());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Counts(rank).compared, 200u);
    EXPECT_EQ(Counts(rank).different + Counts(rank).close + Counts(rank).incomplete, 0u);
  }
}

TEST_F(ReplicaSinkTest, ARankThatDiffersIsToldOnceAsSoonAsTheLastRankHasTheSnapshot) {
  for (std::uint64_t step = 1; step <= 5; ++step) {
    for (const int rank : {0, 1, 2}) Step(rank, step);
  }
  Give(0, 0, 6, 6);
  Give(1, 0, 6, 7);
  EXPECT_THAT(Told(), testing::IsEmpty());
  Give(2, 0, 6, 6);
  EXPECT_THAT(Told(), testing::ElementsAre(
                          "1@6 w step 6: f32[2] of rank 1 is not what 2 of 3 ranks have. Type: "
                          "cgdebug-cli ranks -s 'run'"));
  ASSERT_EQ(findings_.all.size(), 1u);
  EXPECT_EQ(findings_.all[0].kind, layout::FindingKind::kReplica);
  EXPECT_EQ(findings_.all[0].slot, slots_[1][0]);
  EXPECT_EQ(findings_.all[0].step, 6);
  const std::vector<pipeline::JobNotice> notices = controls_.TakeNotices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].finding.slot, slots_[1][0]);
  EXPECT_EQ(notices[0].text,
            "first replica that differs: w @6 on rank 1, step 6: f32[2] of rank 1 is not what 2 of "
            "3 ranks have. Type: cgdebug-cli ranks -s 'run'");
  for (const int rank : {0, 1, 2}) Give(rank, 1, 6, rank == 1 ? 9 : 6);
  EXPECT_THAT(Told(), testing::IsEmpty());
  EXPECT_EQ(Counts(1).different, 2u);
  EXPECT_EQ(Counts(0).different, 0u);
  Give(0, 0, 7, 7);
  Give(1, 0, 7, 8);
  Give(2, 0, 7, 5);
  EXPECT_THAT(Told(), testing::ElementsAre(HasSubstr("is not the same on ranks 0,1,2")));
}

TEST_F(ReplicaSinkTest, ARankThatIsBehindIsWaitedForAndNothingIsSaidAboutItMeanwhile) {
  for (std::uint64_t step = 1; step <= 50; ++step) {
    Step(0, step);
    Step(1, step);
  }
  EXPECT_EQ(Counts(0).compared, 0u);
  EXPECT_EQ(Counts(0).waiting, 100u);
  EXPECT_EQ(Counts(2).waiting, 0u);
  for (std::uint64_t step = 1; step <= 50; ++step) Step(2, step);
  EXPECT_EQ(Counts(0).compared, 100u);
  EXPECT_EQ(Counts(0).waiting, 0u);
  EXPECT_EQ(Counts(0).incomplete, 0u);
}

TEST_F(ReplicaSinkTest, ARankThatDoesNotComeIsWaitedForOnceAndCountedAsMissing) {
  for (const int rank : {0, 1}) Step(rank, 1);
  now_ += ReplicaSink::kPatience;
  sink_.Tick();
  EXPECT_EQ(Counts(0).compared, 2u);
  EXPECT_EQ(Counts(0).incomplete, 2u);
  EXPECT_EQ(Counts(2).incomplete, 2u);
  Step(0, 2);
  Give(1, 0, 2, 3);
  EXPECT_THAT(Told(), testing::ElementsAre(HasSubstr("is not the same on ranks 0,1")));
  // It is back, so it is waited for again.
  Give(slots_[2][1], 3, 3, /*ordinal=*/1);
  Give(0, 1, 3, 3);
  EXPECT_EQ(Counts(2).compared, 0u);
  Give(1, 1, 3, 3);
  EXPECT_EQ(Counts(2).compared, 1u);
}

TEST_F(ReplicaSinkTest, ARankThatEndedIsNotWaitedForAndNotCalledTheSame) {
  for (const int rank : {0, 1}) Step(rank, 1);
  sink_.EndSession(sessions_[2], /*died=*/true);
  EXPECT_EQ(Counts(0).compared, 2u);
  EXPECT_EQ(Counts(0).incomplete, 2u);
}

TEST_F(ReplicaSinkTest, WhatALossTookIsComparedOnlyBetweenTheOthers) {
  for (const int rank : {0, 1, 2}) Give(rank, 0, 1, 1);
  for (const int rank : {0, 1}) Give(rank, 0, 2, 2);
  for (const int rank : {0, 1, 2}) Give(rank, 0, 3, 3);
  EXPECT_EQ(Counts(0).compared, 3u);
  EXPECT_EQ(Counts(0).incomplete, 1u);
  EXPECT_EQ(Counts(2).compared, 2u);
  EXPECT_EQ(Counts(2).incomplete, 1u);
  EXPECT_THAT(Told(), testing::IsEmpty());
}

TEST_F(ReplicaSinkTest, NoMoreThanALimitWaits) {
  for (std::uint64_t step = 1; step <= ReplicaSink::kMostWaiting; ++step) {
    Give(0, 0, step, static_cast<float>(step));
  }
  EXPECT_EQ(Counts(0).incomplete, 0u);
  Give(0, 0, ReplicaSink::kMostWaiting + 1, 1);
  EXPECT_GT(Counts(0).incomplete, 0u);
}

TEST_F(ReplicaSinkTest, RanksThatAddInDifferentOrdersAreCloseAndNotDifferent) {
  for (std::uint64_t step = 1; step <= 20; ++step) {
    const auto value = static_cast<float>(step);
    Give(0, 0, step, value);
    Give(1, 0, step, std::nextafter(value, 100.0f));
    Give(2, 0, step, value);
  }
  EXPECT_THAT(Told(), testing::IsEmpty());
  EXPECT_EQ(Counts(1).close, 20u);
  EXPECT_EQ(Counts(1).different, 0u);
}

// Their statistics are the same.
TEST_F(ReplicaSinkTest, ElementsInOtherPlacesAreDifferentByTheirValues) {
  for (const int rank : {0, 1, 2}) GiveTwo(rank, 1, rank == 1 ? 2 : 1, rank == 1 ? 1 : 2, true);
  EXPECT_EQ(Told().size(), 1u);
  EXPECT_EQ(Counts(1).different, 1u);
}

TEST_F(ReplicaSinkTest, ValuesThatWereJudgedMakeRoomForThoseOfLaterSteps) {
  const auto large =
      std::make_shared<const std::vector<std::byte>>(ReplicaSink::kMostHeldBytes / 3);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    for (const int rank : {0, 1, 2}) {
      pipeline::Delivery delivery = MakeDelivery(slots_[rank][1], step, {1, 1});
      pipeline::Snapshot snapshot = *delivery.snapshot;
      snapshot.step = static_cast<std::int64_t>(step);
      delivery.snapshot = std::make_shared<const pipeline::Snapshot>(snapshot);
      delivery.payload = large;
      sink_.Consume(delivery, feedback_);
    }
  }
  EXPECT_EQ(Counts(1).compared, 2u);
  for (const int rank : {0, 1, 2}) GiveTwo(rank, 1, rank == 1 ? 2 : 1, rank == 1 ? 1 : 2, true);
  EXPECT_EQ(Counts(1).different, 1u);
  EXPECT_EQ(Counts(1).unknown, 0u);
}

TEST_F(ReplicaSinkTest, ElementsInOtherPlacesAreNotCloseWithoutTheirValues) {
  for (std::uint64_t step = 1; step <= 3; ++step) {
    for (const int rank : {0, 1, 2}) {
      GiveTwo(rank, step, rank == 1 ? 2 : 1, rank == 1 ? 1 : 2, false);
    }
  }
  EXPECT_THAT(Told(), testing::IsEmpty());
  EXPECT_EQ(Counts(1).unknown, 3u);
  EXPECT_EQ(Counts(1).close, 0u);
}

TEST_F(ReplicaSinkTest, CapturesThatOneRankHasMoreOftenAreNotPaired) {
  for (const int rank : {0, 1, 2}) Open(rank, "again");
  const pipeline::SlotPtr second = Open(0, "again");
  for (const int rank : {0, 1, 2}) Give(rank, 2, 1, static_cast<float>(rank));
  Give(second, 1, 1);
  now_ += ReplicaSink::kPatience;
  sink_.Tick();
  EXPECT_THAT(Told(), testing::IsEmpty());
  EXPECT_EQ(Counts(0).compared, 0u);
  EXPECT_GT(Counts(0).incomplete, 0u);
}

TEST_F(ReplicaSinkTest, AReplicaWhoseRanksWereCutOffIsIncomplete) {
  pipeline::SlotIdentity identity = test::MakeSlotIdentity(sessions_[1], "long", 9);
  identity.shard = "R of [2], replicas " + std::string(layout::kMaxShardBytes, '1');
  identity.shard.resize(layout::kMaxShardBytes);
  const auto slot = std::make_shared<const pipeline::SlotIdentity>(identity);
  sink_.OpenSlot(slot, feedback_);
  Give(slot, 1, 1);
  sink_.CloseSlot(slot, 1, feedback_);
  EXPECT_EQ(Counts(1).incomplete, 1u);
}

TEST_F(ReplicaSinkTest, WhatStayedInDeviceMemoryWithoutStatisticsIsIncompleteAndNotTheSame) {
  std::vector<pipeline::SlotPtr> unseen;
  for (const int rank : {0, 1, 2}) {
    auto slot = std::make_shared<pipeline::SlotIdentity>(*slots_[rank][0]);
    slot->index = 9;
    slot->registration.flags |= layout::kSlotOnDevice;
    sink_.OpenSlot(slot, feedback_);
    unseen.push_back(slot);
  }
  for (const pipeline::SlotPtr& slot : unseen) Give(slot, 1, 0);
  EXPECT_EQ(Counts(0).compared, 0u);
  EXPECT_EQ(Counts(0).incomplete, 1u);
}

TEST_F(ReplicaSinkTest, WhatCameBeforeTheSecondRankWasKnownIsIncomplete) {
  const auto start = [&](int rank) {
    pipeline::SessionIdentity identity = test::MakeIdentity("a" + std::to_string(rank), "later");
    identity.rank = rank;
    identity.world_size = 2;  // how many of them are on this machine is not known
    sessions_[rank] = registry_.AddSession(identity);
    sink_.OpenSession(sessions_[rank]);
    slots_[rank].clear();
    Open(rank, "w", 2);
  };
  start(0);
  for (const std::uint64_t step : {1, 2}) Give(0, 0, step, 1);
  EXPECT_EQ(Counts(0).incomplete, 0u) << "it may be the only one on this machine";
  start(1);
  EXPECT_EQ(Counts(0).incomplete, 2u);
  Give(0, 0, 3, 3);
  Give(slots_[1][0], 3, 3, /*ordinal=*/1);
  EXPECT_EQ(Counts(0).compared, 1u);
  EXPECT_EQ(Counts(0).incomplete, 2u);
}

TEST_F(ReplicaSinkTest, TwoJobsWithTheSameRunAreNotComparedWithEachOther) {
  for (int rank = 0; rank < 3; ++rank) {  // places 3 to 5
    pipeline::SessionIdentity identity = test::MakeIdentity("b" + std::to_string(rank));
    identity.rank = identity.local_rank = rank;
    identity.world_size = identity.local_world_size = 3;
    sessions_.push_back(registry_.AddSession(identity));
    sink_.OpenSession(sessions_.back());
    slots_.emplace_back();
    Open(3 + rank, "w");
  }
  for (const int place : {0, 4, 2, 3, 1, 5}) {
    Give(place, 0, 1, place < 3 ? 1.0f : 2.0f);
  }
  now_ += ReplicaSink::kPatience;
  sink_.Tick();
  EXPECT_THAT(Told(), testing::IsEmpty());
  EXPECT_EQ(Counts(0).compared, 0u);
  EXPECT_GT(Counts(0).incomplete, 0u);
  for (const int place : {3, 4, 5}) sink_.EndSession(sessions_[place], /*died=*/false);
  for (const int rank : {0, 1, 2}) Give(rank, 0, 2, 2);
  EXPECT_EQ(Counts(0).compared, 1u);
}

TEST_F(ReplicaSinkTest, CapturesOfProcessesThatEndedConfuseNobody) {
  for (const int rank : {0, 1, 2}) Open(rank, "w");  // captured twice
  for (const pipeline::SessionPtr& session : sessions_) sink_.EndSession(session, false);
  for (int rank = 0; rank < 3; ++rank) {  // started again with the same run
    pipeline::SessionIdentity identity = test::MakeIdentity("b" + std::to_string(rank));
    identity.rank = identity.local_rank = rank;
    identity.world_size = identity.local_world_size = 3;
    sessions_[rank] = registry_.AddSession(identity);
    sink_.OpenSession(sessions_[rank]);
    slots_[rank].clear();
    Open(rank, "w");
  }
  for (const int rank : {0, 1, 2}) Give(rank, 0, 1, 1);
  EXPECT_EQ(Counts(0).compared, 1u);
}

TEST_F(ReplicaSinkTest, WhatAJobSaysOfItsRanksIsNotBelieved) {
  pipeline::SessionIdentity identity = test::MakeIdentity("f");
  identity.rank = identity.world_size = identity.local_world_size = INT32_MAX;
  sink_.OpenSession(registry_.AddSession(identity));
  identity.uuid[0] = 'e';
  identity.local_rank = 0;
  sink_.OpenSession(registry_.AddSession(identity));
  for (const int rank : {0, 1, 2}) Step(rank, 1);
  EXPECT_EQ(Counts(0).compared, 2u);
}

TEST(PositionCounter, TakesAnyStepThatAJobSays) {
  replicas::PositionCounter positions;
  positions.Next(1, 1, 0, /*step=*/-1, /*may_begin_inside=*/true);
  const replicas::Position last = {true, INT64_MAX, 0};
  EXPECT_EQ(positions.Next(2, 2, 0, INT64_MAX, true), last);
  EXPECT_TRUE(positions.is_certain());
}

TEST_F(ReplicaSinkTest, AProcessOfTheRunWithoutARankIsComparedWithNothing) {
  pipeline::SessionIdentity identity = test::MakeIdentity("f");
  identity.rank = -1;
  identity.world_size = 1;
  sessions_.push_back(registry_.AddSession(identity));
  sink_.OpenSession(sessions_.back());
  slots_.emplace_back();
  Open(3, "w");  // its shard names replicas all the same
  Give(3, 0, 1, 5);
  for (const int rank : {0, 1, 2}) Step(rank, 1);
  EXPECT_THAT(Told(), testing::IsEmpty());
  EXPECT_EQ(Counts(0).compared, 2u);
  EXPECT_EQ(Counts(3).compared, 0u);
}

TEST_F(ReplicaSinkTest, ARestartIsComparedApart) {
  for (const int rank : {0, 1, 2}) Step(rank, 1);
  const std::vector<pipeline::SessionPtr> first = sessions_;
  for (const pipeline::SessionPtr& session : first) sink_.EndSession(session, true);
  for (int rank = 0; rank < 3; ++rank) {
    pipeline::SessionIdentity identity = test::MakeIdentity("a" + std::to_string(rank));
    identity.rank = identity.local_rank = rank;
    identity.world_size = identity.local_world_size = 3;
    identity.restart_count = 1;
    sessions_[rank] = registry_.AddSession(identity);
    sink_.OpenSession(sessions_[rank]);
    slots_[rank].clear();
    Open(rank, "w");
  }
  for (const int rank : {0, 1, 2}) Give(rank, 0, 1, 100);
  EXPECT_THAT(Told(), testing::IsEmpty());
  EXPECT_EQ(Counts(0).compared, 1u);
  for (const pipeline::SessionPtr& session : first) sink_.ForgetSession(session);
  for (const int rank : {0, 1, 2}) Give(rank, 0, 2, rank == 2 ? 1 : 101);
  EXPECT_THAT(Told(), testing::ElementsAre(HasSubstr("rank 2 is not what 2 of 3 ranks have")));
}

}  // namespace
}  // namespace cgdebug::sinks
