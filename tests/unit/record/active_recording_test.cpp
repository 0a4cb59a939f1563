// What a recording keeps of its input, and how it accounts for the rest.
#include "daemon/record/active_recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/core/recording/recording_reader.h"
#include "tests/support/daemon/model_fixture.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::pipeline {
namespace {

using layout::LossCause;
using recording::RecordingReader;
using recording::StopReason;
using testing::ElementsAre;

// A recording of one slot.
class Recorded : public testing::Test {
 protected:
  // `every` > 1: as the job registered it to be on the disk.
  void Start(std::uint32_t every = 1, std::uint64_t replays = 0, std::uint64_t align = 0,
             bool in_body = false) {
    SlotIdentity identity = test::MakeSlotIdentity(session_, "x", 1);
    if (in_body) identity.registration.flags |= layout::kSlotInBody;
    identity.registration.actions = layout::kActionRecord | layout::kActionRecordToDisk;
    identity.registration.record_every = every;
    slot_ = std::make_shared<const SlotIdentity>(identity);
    RecordRequest request;
    request.directory = dir_ / "a.cgrec";
    request.to_disk_only = every > 1;
    request.replays = replays;
    request.align = align;
    request.owner = owner_;
    auto recording = ActiveRecording::Start(1, std::move(request), {});
    ASSERT_TRUE(recording.ok()) << recording.error().message;
    recording_ = *std::move(recording);
    recording_->Open(slot_, 0);
  }
  void Replay(std::uint64_t replay, bool forced = false, std::uint64_t ordinal = 0) {
    const Delivery delivery = test::MakeDelivery(slot_, replay, {1, 2});
    Snapshot snapshot = *delivery.snapshot;
    snapshot.forced = forced;
    if (ordinal != 0) snapshot.ordinal = ordinal;
    recording_->Consume({std::make_shared<const Snapshot>(snapshot), delivery.payload}, nullptr,
                        suppressed_);
  }
  // In a conditional body.
  void Run(std::uint64_t ordinal, std::uint64_t replay, std::uint32_t iteration) {
    const Delivery delivery = test::MakeDelivery(slot_, replay, {1, 2});
    Snapshot snapshot = *delivery.snapshot;
    snapshot.ordinal = ordinal;
    snapshot.iteration = iteration;
    recording_->Consume({std::make_shared<const Snapshot>(snapshot), delivery.payload});
  }
  static std::vector<std::pair<std::uint64_t, std::uint32_t>> Places(
      const RecordingReader& reader) {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> places;
    for (const auto& ref : reader.Snapshots(0)) places.emplace_back(ref.replay, ref.iteration);
    return places;
  }
  // Up to this replay, before the next one.
  void Lose(std::uint64_t last, bool before_forced = false,
            layout::LossCause cause = layout::LossCause::kOverwritten) {
    recording_->Lose({.slot = slot_,
                      .cause = cause,
                      .last_ordinal = last,
                      .last_replay = last,
                      .before_replay = last + 1,
                      .before_forced = before_forced});
  }
  std::unique_ptr<RecordingReader> Read() {
    EXPECT_TRUE(recording_->writer().Close(StopReason::kRequested).ok());
    auto reader = RecordingReader::Open(dir_ / "a.cgrec");
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    return *std::move(reader);
  }
  static std::vector<std::uint64_t> Replays(const RecordingReader& reader) {
    std::vector<std::uint64_t> replays;
    for (const auto& ref : reader.Snapshots(0)) replays.push_back(ref.replay);
    return replays;
  }
  static std::uint64_t Lost(const RecordingReader& reader) {
    std::uint64_t lost = 0;
    for (const auto& loss : reader.losses()) lost += loss.count;
    return lost;
  }

  pid_t owner_ = 0;  // for Start()
  testing_support::TempDir dir_;
  SessionPtr session_ = test::MakeSession("1");
  SlotPtr slot_;
  std::uint64_t suppressed_ = 0;  // by the live control
  std::unique_ptr<ActiveRecording> recording_;
};

TEST_F(Recorded, IterationsAreKeptAndAReplayInWhichTheBodyDidNotRunIsNoLoss) {
  Start(/*every=*/1, /*replays=*/0, /*align=*/0, /*in_body=*/true);
  Run(1, 1, 0);
  Run(2, 4, 0);
  Run(3, 4, 1);
  recording_->Close(slot_, 9);
  const auto reader = Read();
  EXPECT_THAT(Places(*reader),
              ElementsAre(std::pair(1u, 0u), std::pair(4u, 0u), std::pair(4u, 1u)));
  EXPECT_TRUE(reader->slots()[0].in_body);
  EXPECT_EQ(Lost(*reader), 0u);
  EXPECT_EQ(reader->AccountOf(0).kept, 3u);
  EXPECT_EQ(reader->AccountOf(0).lost_count(), 0u);
  EXPECT_TRUE(reader->AccountOf(0).is_end_known);
  EXPECT_EQ(reader->Find(0, 4)->iteration, 1u) << "the last one";
  EXPECT_EQ(reader->FindOrdinal(0, 2)->iteration, 0u);
  EXPECT_EQ(reader->Read(*reader->FindOrdinal(0, 3))->iteration, 1u);
  EXPECT_FALSE(reader->Find(0, 2));
  EXPECT_FALSE(reader->FindOrdinal(0, 4));
}

TEST_F(Recorded, IterationsThatAreLostAreCountedAndTheirPlaceIncludesTheirReplay) {
  Start(/*every=*/3, /*replays=*/0, /*align=*/0, /*in_body=*/true);
  Run(1, 1, 0);
  Run(5, 1, 4);
  recording_->Lose({.slot = slot_,
                    .cause = LossCause::kOverwritten,
                    .last_ordinal = 7,
                    .last_replay = 4,
                    .before_replay = 4});
  Run(8, 4, 2);
  const auto reader = Read();
  ASSERT_EQ(reader->losses().size(), 2u);
  EXPECT_EQ(reader->losses()[0].count, 3u) << "a period says nothing of iterations";
  EXPECT_EQ(reader->losses()[0].after_replay, 0u);
  EXPECT_EQ(reader->losses()[0].before_replay, 2u);
  EXPECT_EQ(reader->losses()[1].count, 2u);
  EXPECT_EQ(reader->losses()[1].after_replay, 0u);
  EXPECT_EQ(reader->losses()[1].before_replay, 5u);
}

TEST_F(Recorded, ALimitOfReplaysTakesAllIterationsOfTheLast) {
  Start(/*every=*/1, /*replays=*/2, /*align=*/0, /*in_body=*/true);
  Run(1, 3, 0);
  Run(2, 3, 1);
  Run(3, 4, 0);
  Run(4, 4, 1);
  Run(5, 5, 0);
  EXPECT_EQ(recording_->Over(), StopReason::kReached);
  const auto reader = Read();
  EXPECT_THAT(Places(*reader), ElementsAre(std::pair(3u, 0u), std::pair(3u, 1u), std::pair(4u, 0u),
                                           std::pair(4u, 1u)));
}

TEST_F(Recorded, LossesBesideASnapshotThatTheLiveControlAskedForWereWanted) {
  Start(/*every=*/10);
  Replay(1);
  Lose(4, /*before_forced=*/true);
  Replay(5, /*forced=*/true);
  Lose(8);
  Replay(9);
  Lose(10);
  Replay(11);
  const auto reader = Read();
  EXPECT_THAT(Replays(*reader), ElementsAre(1, 5, 11));
  ASSERT_EQ(reader->losses().size(), 2u);
  EXPECT_EQ(reader->losses()[0].count, 3u);
  EXPECT_EQ(reader->losses()[1].count, 3u);
  EXPECT_EQ(reader->losses()[1].after_replay, 5u);
}

TEST_F(Recorded, TakesNothingAfterTheHeadAtWhichItWasStopped) {
  Start();
  Replay(1);
  recording_->EndAt({{.slot = slot_, .ordinal = 3, .replay = 3}});
  for (const std::uint64_t replay : {2, 3, 4}) Replay(replay);
  recording_->CloseSlots();
  const auto reader = Read();
  EXPECT_THAT(Replays(*reader), ElementsAre(1, 2, 3));
  EXPECT_TRUE(reader->complete());
  const recording::Account account = reader->AccountOf(0);
  EXPECT_EQ(account.produced, 3u);
  EXPECT_EQ(account.kept, 3u);
}

TEST_F(Recorded, ALossAcrossTheStopIsCutThere) {
  Start();
  Replay(1);
  recording_->EndAt({{.slot = slot_, .ordinal = 3, .replay = 3}});
  Lose(5);
  Replay(6);
  recording_->CloseSlots();
  const auto reader = Read();
  EXPECT_EQ(Lost(*reader), 2u);
  EXPECT_EQ(reader->AccountOf(0).produced, 3u);
}

TEST_F(Recorded, SnapshotsNotReadInTimeBeforeTheStopAreLost) {
  Start(/*every=*/10);
  Replay(1);
  recording_->EndAt({{.slot = slot_, .ordinal = 5, .replay = 41}});
  recording_->CloseSlots();
  const auto reader = Read();
  EXPECT_FALSE(reader->complete());
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].cause, LossCause::kUnread);
  EXPECT_EQ(reader->losses()[0].count, 4u);
  EXPECT_EQ(reader->AccountOf(0).produced, 5u);
}

TEST_F(Recorded, ASlotThatComesWhenItWasStoppedIsNotTaken) {
  Start();
  recording_->EndAt({});
  slot_ = test::MakeSlot(session_, "y", 2);
  recording_->Open(slot_, 0);
  Replay(1);
  recording_->CloseSlots();
  EXPECT_EQ(Read()->slots().size(), 1u);
}

TEST_F(Recorded, WhatIsMissingBeforeTheMarkThatClosedASlotIsDamage) {
  Start();
  Replay(1);
  recording::Mark mark;
  mark.kind = recording::MarkKind::kSlotClosed;
  mark.slot = 0;
  mark.ordinal = 6;  // the mark's ordinal: five more snapshots
  mark.skipped = 2;  // two of these were not wanted
  ASSERT_TRUE(recording_->writer().AddMark(mark).ok());
  const auto reader = Read();
  EXPECT_FALSE(reader->complete());
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].cause, LossCause::kDamaged);
  const recording::Account account = reader->AccountOf(0);
  EXPECT_EQ(account.produced, 6u);
  EXPECT_EQ(account.not_wanted, 2u);
  EXPECT_EQ(account.lost_count(), 3u);
}

TEST_F(Recorded, ItsAccountGoesOnToWhereASlotWasClosed) {
  Start(/*every=*/10);
  for (const std::uint64_t replay : {1, 2, 3, 4, 5}) Replay(replay);
  recording_->Close(slot_, 5);
  const auto reader = Read();
  EXPECT_THAT(Replays(*reader), ElementsAre(1));
  EXPECT_TRUE(reader->complete());
  EXPECT_EQ(reader->AccountOf(0).produced, 5u);
  EXPECT_EQ(reader->AccountOf(0).not_wanted, 4u);
}

TEST_F(Recorded, TheEndOfASlotThatWasNeverClosedIsUnknown) {
  Start();
  Replay(1);
  recording_->Close(slot_, 1);
  slot_ = test::MakeSlot(session_, "y", 2);
  recording_->Open(slot_, 0);
  Replay(1);
  const auto reader = Read();
  EXPECT_TRUE(reader->AccountOf(0).is_end_known);
  EXPECT_FALSE(reader->AccountOf(1).is_end_known);
  EXPECT_FALSE(reader->complete());
}

TEST_F(Recorded, KnowsWhatTheDaemonFoundInItsReplaysAndNoEarlierOne) {
  Start();
  slot_ = test::MakeSlot(session_, "y", 2);
  recording_->Open(slot_, 4, /*seen_replay=*/4);
  recording_->Found({.slot = slot_, .kind = layout::FindingKind::kInf, .replay = 4, .count = 1});
  recording_->Found({.slot = slot_, .kind = layout::FindingKind::kNan, .replay = 5, .count = 2});
  const auto reader = Read();
  ASSERT_EQ(reader->marks().size(), 1u);
  EXPECT_EQ(reader->marks()[0].kind, recording::MarkKind::kFirstNan);
  EXPECT_EQ(reader->marks()[0].replay, 5u);
  EXPECT_EQ(reader->marks()[0].count, 2u);
}

TEST_F(Recorded, SnapshotsThatNeverCameAreLostToo) {
  Start(/*every=*/10);
  Replay(1);
  Replay(31);  // an earlier daemon had 2 to 30, and wrote none of them
  EXPECT_EQ(recording_->info().lost, 2u);
  Replay(35, /*forced=*/true);
  EXPECT_EQ(recording_->info().lost, 5u);
}

TEST_F(Recorded, TwoGapsInARowAreTwoLosses) {
  Start(/*every=*/10);
  Replay(1);
  Lose(12);
  Lose(13, /*before_forced=*/false, layout::LossCause::kCorrupted);
  Replay(14);
  EXPECT_EQ(recording_->info().lost, 1u) << "replay 11";
}

TEST_F(Recorded, SnapshotsThatTheRecordingHasAreNeitherTakenAgainNorLost) {
  Start(/*every=*/2);
  for (std::uint64_t replay = 1; replay <= 5; ++replay) Replay(replay);
  recording_ = nullptr;
  Start(/*every=*/2);  // by a daemon that was given back no more than replay 3
  for (const std::uint64_t replay : {2, 3}) Replay(replay);
  Lose(8);
  Replay(9);
  const auto reader = Read();
  EXPECT_THAT(Replays(*reader), ElementsAre(1, 3, 5, 9));
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].count, 1u);
  EXPECT_EQ(reader->losses()[0].first_ordinal, 6u);
}

TEST_F(Recorded, KeepsWhatIsKnownOfASnapshot) {
  Start();
  Replay(1);
  const Delivery delivery = test::MakeDelivery(slot_, 2, {1, 2});
  Snapshot snapshot = *delivery.snapshot;
  snapshot.changed = false;
  const ComparisonPtr comparison =
      CompareWithExpected(*slot_, *delivery.payload, test::Bytes({1, 5}));
  recording_->Consume({std::make_shared<const Snapshot>(snapshot), delivery.payload}, comparison);
  const auto reader = Read();
  const auto read = reader->Read(*reader->Last(0));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(read->unchanged);
  EXPECT_TRUE(read->compared);
  EXPECT_EQ(read->comparison.mismatched, 1u);
  EXPECT_FALSE(reader->Read(*reader->Find(0, 1))->unchanged);
}

TEST_F(Recorded, ValuesThatAreGoneLieInTheReplaysThatAreNamed) {
  Start();
  recording_->LoseReplays(slot_, LossCause::kValuesGone, 2, 3, 5);
  const auto reader = Read();
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].cause, LossCause::kValuesGone);
  EXPECT_EQ(reader->losses()[0].count, 2u);
  EXPECT_EQ(reader->losses()[0].after_replay, 2u);
  EXPECT_EQ(reader->losses()[0].before_replay, 6u);
}

TEST_F(Recorded, EndsWithItsReplaysAlsoWhereTheLastOnesHaveNoSnapshot) {
  Start(/*every=*/1, /*replays=*/3);
  Replay(1);
  Replay(4, /*forced=*/false, /*ordinal=*/2);
  EXPECT_EQ(recording_->Over(), StopReason::kReached);
  EXPECT_THAT(Replays(*Read()), ElementsAre(1));
}

TEST_F(Recorded, SkippedAreThoseSinceTheLastOneThatWasWanted) {
  Start(/*every=*/10);
  Replay(1);
  for (std::uint64_t replay = 2; replay <= 5; ++replay) Replay(replay);
  Lose(10);  // nothing of it was wanted
  Replay(11);
  Replay(21, /*forced=*/false, /*ordinal=*/12);
  const auto reader = Read();
  std::vector<std::uint64_t> skipped;
  for (const auto& ref : reader->Snapshots(0)) skipped.push_back(reader->Read(ref)->skipped);
  EXPECT_THAT(skipped, ElementsAre(0, 9, 0));
  EXPECT_TRUE(reader->complete());
}

TEST_F(Recorded, HasItsReplaysFromTheFirstAlignedOneOn) {
  Start(/*every=*/1, /*replays=*/3, /*align=*/4);
  Replay(1);
  Lose(2);  // it is unknown whether it would have been wanted
  Replay(3);
  Replay(4);
  Lose(5, /*before_forced=*/false, layout::LossCause::kCorrupted);
  EXPECT_EQ(recording_->Over(), StopReason::kNone);
  Replay(6);
  Lose(7);
  Replay(8);
  EXPECT_EQ(recording_->Over(), StopReason::kReached) << "one after the last was seen";
  const auto reader = Read();
  EXPECT_THAT(Replays(*reader), ElementsAre(4, 6));
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].cause, LossCause::kCorrupted);
  EXPECT_EQ(reader->losses()[0].first_ordinal, 5u);
}

TEST_F(Recorded, WaitsForAProbeThatHasBegun) {
  Start(/*every=*/1, /*replays=*/2);
  const SlotPtr other = test::MakeSlot(session_, "y", 2);
  recording_->Open(other, 0);
  const Delivery delivery = test::MakeDelivery(other, 1, {1, 2});
  recording_->Consume({delivery.snapshot, delivery.payload});
  for (std::uint64_t replay = 1; replay <= 3; ++replay) Replay(replay);
  EXPECT_EQ(recording_->Over(), StopReason::kNone);
  const Delivery second = test::MakeDelivery(other, 2, {1, 2});
  recording_->Consume({second.snapshot, second.payload});
  EXPECT_EQ(recording_->Over(), StopReason::kReached);
}

TEST_F(Recorded, WantedReplaysThatTheLiveControlKeptBackAreMissing) {
  Start();
  Replay(1);
  suppressed_ = 3;
  Replay(5, /*forced=*/false, /*ordinal=*/2);
  recording_->Close(slot_, 7, /*suppressed=*/5);
  const auto reader = Read();
  ASSERT_EQ(reader->losses().size(), 2u);
  for (const auto& [loss, count, after, before] :
       {std::tuple(reader->losses()[0], 3u, 1u, 5u), {reader->losses()[1], 2u, 5u, 8u}}) {
    EXPECT_EQ(loss.cause, LossCause::kStoodStill);
    EXPECT_EQ(loss.count, count);
    EXPECT_EQ(loss.after_replay, after);
    EXPECT_EQ(loss.before_replay, before);
  }
}

TEST_F(Recorded, WhatTheLiveControlKeptBackIsMissingWhateverItAskedForInstead) {
  Start();
  Replay(1);
  suppressed_ = 19;  // off, then full
  Replay(21, /*forced=*/true, /*ordinal=*/2);
  Replay(22, /*forced=*/true, /*ordinal=*/3);
  recording_->Close(slot_, 22, suppressed_);
  const auto reader = Read();
  EXPECT_EQ(Lost(*reader), 19u);
  EXPECT_FALSE(reader->complete());
}

TEST_F(Recorded, WhatWasKeptBackBeforeItBeganIsNotMissing) {
  Start();
  SlotIdentity other = *slot_;
  other.index = 7;
  slot_ = std::make_shared<const SlotIdentity>(other);
  recording_->Open(slot_, 0, 0, /*suppressed=*/19);
  suppressed_ = 19;
  Replay(1);
  recording_->Close(slot_, 1, suppressed_);
  EXPECT_EQ(Lost(*Read()), 0u);
}

TEST_F(Recorded, WhatWasToBeSeenAndNobodySawIsInItAndTheLastWordOfAKindCounts) {
  Start();
  Replay(1);
  layout::NotSeen refused{.count = 1, .of = 2, .calls = 1, .name = "y", .reason = "no room"};
  recording_->NotSeen(session_, refused);
  refused.calls = 7;
  recording_->NotSeen(session_, refused);
  recording_->Close(slot_, 1);
  const auto reader = Read();
  EXPECT_FALSE(reader->complete());
  EXPECT_EQ(reader->marks().back().kind, recording::MarkKind::kSlotClosed);
  std::vector<layout::NotSeen> told;
  for (const recording::Mark& mark : reader->marks()) {
    if (mark.not_seen) told.push_back(*mark.not_seen);
  }
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told.back(), refused);
  EXPECT_EQ(ToText(told.back()), "1 of 2 probes is not watched, y (7 calls): no room");
}

TEST_F(Recorded, WhatNobodyWantedAnyLongerWhenItBeganIsNoneOfIts) {
  Start();
  layout::NotSeen refused{.count = 3, .of = 9, .calls = 30, .name = "y", .reason = "no room"};
  refused.gone = {.count = 3, .of = 5, .calls = 30};
  layout::NotSeen given_up{.kind = layout::NotSeenKind::kGivenUp, .count = 40};
  recording_->BeginNotSeen(session_, refused);
  recording_->BeginNotSeen(session_, given_up);
  Replay(1);
  recording_->Close(slot_, 1);
  const auto reader = Read();
  EXPECT_TRUE(reader->complete());
  for (const recording::Mark& mark : reader->marks()) EXPECT_FALSE(mark.not_seen);
}

TEST_F(Recorded, WhatIsNotSeenAfterItsBeginIsCountedWithoutWhatWasGoneBefore) {
  Start();
  layout::NotSeen refused{.count = 3, .of = 9, .calls = 30, .name = "y", .reason = "no room"};
  refused.gone = {.count = 2, .of = 5, .calls = 25};
  recording_->BeginNotSeen(session_, refused);
  refused.calls = 31;
  refused.gone = {.count = 3, .of = 6, .calls = 31};  // it was wanted for a while
  recording_->NotSeen(session_, refused);
  recording_->NotSeen(session_, {.kind = layout::NotSeenKind::kGivenUp, .count = 2});
  Replay(1);
  recording_->Close(slot_, 1);
  const auto reader = Read();
  EXPECT_FALSE(reader->complete());
  std::vector<std::string> told;
  for (const recording::Mark& mark : reader->marks()) {
    if (mark.not_seen) told.push_back(ToText(*mark.not_seen));
  }
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[1], "1 of 4 probes is not watched, y (6 calls): no room");
}

// A child that sleeps until it is killed; with this pid, if it is not 0. -1: that cannot be had.
pid_t Sleeper(pid_t wanted) {
  clone_args arguments = {};
  arguments.exit_signal = SIGCHLD;
  if (wanted != 0) {
    arguments.set_tid = reinterpret_cast<std::uintptr_t>(&wanted);
    arguments.set_tid_size = 1;
  }
  const long pid = syscall(SYS_clone3, &arguments, sizeof(arguments));
  if (pid == 0) {
    for (;;) pause();
  }
  return static_cast<pid_t>(pid);
}

void End(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(Recorded, AProcessThatGetsThePidOfItsDeadOwnerDoesNotKeepItOpen) {
  owner_ = Sleeper(0);
  ASSERT_GT(owner_, 0);
  Start();
  Replay(1);
  recording_->Close(slot_, 1);
  recording_->EndSession(session_, /*died=*/false);
  EXPECT_EQ(recording_->Over(), StopReason::kNone) << "more jobs of the run may come";
  End(owner_);
  usleep(20'000);  // so that the next one does not begin in the same clock tick
  const pid_t other = Sleeper(owner_);
  if (other == -1) GTEST_SKIP() << "the system lets nobody choose a pid";
  ASSERT_EQ(other, owner_);
  EXPECT_EQ(recording_->Over(), StopReason::kJobEnded);
  End(other);
}

TEST_F(Recorded, TheEndOfASlotIsUnknownIfTheMemoryOfItsJobWasCutOff) {
  Start();
  Replay(1);
  recording_->EndSession(session_, /*died=*/true);
  EXPECT_FALSE(Read()->AccountOf(0).is_end_known);
}

TEST_F(Recorded, OnlyThePeriodsReplaysAreMissingIfTheyWereKeptBack) {
  Start(/*every=*/10);
  Replay(1);
  suppressed_ = 2;
  Replay(31, /*forced=*/false, /*ordinal=*/2);
  const auto reader = Read();
  EXPECT_EQ(Lost(*reader), 2u) << "replays 11 and 21";
}

TEST_F(Recorded, SaysWhichSlotEndedWithWhichReplay) {
  Start();
  Replay(1);
  recording_->Close(slot_, 3);
  recording_->EndSession(session_, /*died=*/false);
  EXPECT_EQ(recording_->Over(), StopReason::kJobEnded);
  const auto reader = Read();
  const auto closed =
      std::ranges::find(reader->marks(), recording::MarkKind::kSlotClosed, &recording::Mark::kind);
  ASSERT_NE(closed, reader->marks().end());
  EXPECT_EQ(closed->slot, 0);
  EXPECT_EQ(closed->replay, 3u);
  EXPECT_EQ(std::ranges::count(reader->marks(), recording::MarkKind::kSessionEnded,
                               &recording::Mark::kind),
            1);
}

}  // namespace
}  // namespace cgdebug::pipeline
