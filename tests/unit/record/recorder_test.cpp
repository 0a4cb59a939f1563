// Which snapshots each recording gets, over several daemons one after the other.
#include "daemon/record/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <utility>

#include "daemon/core/recording/recording_reader.h"
#include "tests/support/daemon/model_fixture.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::pipeline {
namespace {

using recording::StopReason;

class RecorderTest : public testing::Test {
 protected:
  SlotPtr MakeSlot(bool to_disk) {
    SlotIdentity identity = test::MakeSlotIdentity(session_, "x", 1);
    identity.registration.actions = layout::kActionRecord;
    if (to_disk) identity.registration.actions |= layout::kActionRecordToDisk;
    return std::make_shared<const SlotIdentity>(identity);
  }
  void Start() {
    RecordRequest request;
    request.directory = dir_ / "a.cgrec";
    const auto started = recorder_.Start(std::move(request));
    ASSERT_TRUE(started.ok()) << started.error().message;
  }
  void Open(const SlotPtr& slot, std::uint64_t consumed_before) {
    feedback_.consumed = consumed_before;
    recorder_.OpenSlot(slot, feedback_);
  }
  void Close(const SlotPtr& slot, std::uint64_t last_replay) {
    recorder_.CloseSlot(slot, last_replay, feedback_);
  }
  void Replay(const SlotPtr& slot, std::uint64_t replay, bool seen_before = false) {
    Delivery delivery = test::MakeDelivery(slot, replay, {1, 2});
    delivery.seen_before = seen_before;
    recorder_.Consume(delivery, feedback_);
  }
  recording::WriterStatus Status() const { return recorder_.List().front(); }

  test::FakeFeedback feedback_;
  testing_support::TempDir dir_;
  const int chosen_ = setenv("CGDEBUG_DIR", (dir_ / "runs").c_str(), 1);  // before any thread
  SessionPtr session_ = test::MakeSession("1");
  std::vector<std::string> told_;
  std::vector<layout::Lossless> lossless_;  // what slots were told
  Recorder recorder_{
      {},
      [this](const SessionPtr&, const std::string& text) { told_.push_back(text); },
      [this](const SlotPtr&, layout::Lossless lossless, bool) { lossless_.push_back(lossless); }};
};

TEST_F(RecorderTest, WhatAnEarlierDaemonConsumedIsOnTheDiskOrLost) {
  const SlotPtr slot = MakeSlot(/*to_disk=*/true);
  Open(slot, /*consumed_before=*/5);
  for (const std::uint64_t replay : {4, 5}) Replay(slot, replay, /*seen_before=*/true);
  Replay(slot, 6);
  EXPECT_EQ(Status().snapshots, 3u);
  EXPECT_EQ(Status().lost, 3u);
}

TEST_F(RecorderTest, HasBegunWhenTheIngestThreadHasToldTheJobsToLoseNothing) {
  RingReads reads;
  Recorder recorder(
      {}, {}, [&](const auto&...) { lossless_.push_back(layout::Lossless::kOn); }, &reads);
  recorder.OpenSlot(MakeSlot(/*to_disk=*/false), feedback_);
  RecordRequest request;
  request.directory = dir_ / "a.cgrec";
  request.lossless = LosslessJobs::kEvery;
  auto begun =
      std::async(std::launch::async, [&] { return recorder.Start(std::move(request)).ok(); });
  const auto serve_when_asked = [&] {
    pollfd asked = {reads.fd(), POLLIN, 0};
    while (begun.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      if (poll(&asked, 1, /*timeout_ms=*/1) != 1) continue;
      reads.Serve({}, [] { return RingHeads(); });
      return true;
    }
    return false;
  };
  // The ingest thread takes what it is to tell jobs, and then serves, in each round.
  EXPECT_TRUE(serve_when_asked());
  EXPECT_EQ(lossless_.size(), 1u);
  EXPECT_TRUE(serve_when_asked()) << "it had begun before that round";
  EXPECT_TRUE(begun.get());
  reads.End();
}

TEST_F(RecorderTest, WhatCameBeforeARecordingWasStartedIsNotLostToIt) {
  const SlotPtr slot = MakeSlot(/*to_disk=*/false);
  Open(slot, /*consumed_before=*/3);
  Start();
  Replay(slot, 3, /*seen_before=*/true);
  Replay(slot, 4);
  EXPECT_EQ(Status().snapshots, 1u);
  EXPECT_EQ(Status().lost, 0u);
}

TEST_F(RecorderTest, TakesOnlyTheGraphAndTheShapeThatWereAskedFor) {
  const auto slot_of = [&](std::uint64_t order, std::uint64_t graph_id, std::uint64_t elements,
                           const std::string& label) {
    SlotIdentity identity = test::MakeSlotIdentity(session_, "x", order, elements);
    identity.registration.graph_id = graph_id;
    identity.graph_label = label;
    return std::make_shared<const SlotIdentity>(identity);
  };
  RecordRequest request;
  request.directory = dir_ / "a.cgrec";
  request.which.graph = "bs=8";
  request.which.shape = std::vector<std::uint64_t>{2};
  request.graphs = {{session_->uuid, 4}};  // has no label of its own
  ASSERT_TRUE(recorder_.Start(std::move(request)).ok());
  const SlotPtr other_shape = slot_of(5, 1, 3, "bs=8");
  Open(other_shape, 0);
  recorder_.Consume(test::MakeDelivery(other_shape, 1, {1, 2, 3}), feedback_);
  std::uint64_t wanted = 0;
  for (const auto& [graph_id, label] :
       std::map<std::uint64_t, std::string>{{0, ""}, {1, "bs=8"}, {2, "bs=16"}, {3, ""}, {4, ""}}) {
    const SlotPtr slot = slot_of(graph_id + 10, graph_id, 2, label);
    Open(slot, 0);
    Replay(slot, 1);
    wanted += graph_id == 1 || graph_id == 4;
    EXPECT_EQ(Status().snapshots, wanted) << "graph " << graph_id;
  }
}

TEST_F(RecorderTest, BeginsAfterTheLastSnapshotThatWasSeen) {
  const SlotPtr slot = MakeSlot(/*to_disk=*/false);
  Open(slot, /*consumed_before=*/3);
  Replay(slot, 4);
  Start();
  Replay(slot, 6);
  EXPECT_EQ(Status().snapshots, 1u);
  EXPECT_EQ(Status().lost, 1u) << "replay 5";
}

TEST_F(RecorderTest, BeginsAfterTheLastGapThatWasTold) {
  const SlotPtr slot = MakeSlot(/*to_disk=*/false);
  Open(slot, /*consumed_before=*/0);
  recorder_.Lose({.slot = slot, .count = 4, .last_ordinal = 4, .last_replay = 4});
  Start();
  recorder_.Lose({.slot = slot, .count = 2, .last_ordinal = 6, .last_replay = 6});
  Replay(slot, 7);
  EXPECT_EQ(Status().lost, 2u);
}

TEST_F(RecorderTest, ASlotThatWasClosedIsNotInRecordingsThatBeginLater) {
  const SlotPtr slot = MakeSlot(/*to_disk=*/false);
  Open(slot, 0);
  Close(slot, 1);
  Start();
  EXPECT_EQ(recorder_.List().front().slot_count, 0u);
}

TEST_F(RecorderTest, SaysWithWhichReplayASlotWasClosed) {
  const SlotPtr slot = MakeSlot(/*to_disk=*/false);
  Open(slot, 0);
  Start();
  Close(slot, 7);
  ASSERT_TRUE(recorder_.Stop("", StopReason::kRequested).ok());
  const auto reader = recording::RecordingReader::Open(dir_ / "a.cgrec");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(std::ranges::count(
                (*reader)->marks(), std::pair(recording::MarkKind::kSlotClosed, std::uint64_t{7}),
                [](const recording::Mark& mark) { return std::pair(mark.kind, mark.replay); }),
            1);
}

TEST_F(RecorderTest, ASlotLosesNothingOnlyWhileARecordingNeedsAllOfIt) {
  Open(MakeSlot(/*to_disk=*/false), 0);
  RecordRequest request;
  request.directory = dir_ / "a.cgrec";
  ASSERT_TRUE(recorder_.Start(request).ok());  // the job was there first: it does not wait
  EXPECT_THAT(lossless_, testing::IsEmpty());
  request.directory = dir_ / "b.cgrec";
  request.lossless = LosslessJobs::kEvery;
  ASSERT_TRUE(recorder_.Start(request).ok());
  EXPECT_THAT(lossless_, testing::ElementsAre(layout::Lossless::kOn));
  ASSERT_TRUE(recorder_.Stop(dir_ / "b.cgrec", StopReason::kRequested).ok());
  EXPECT_THAT(lossless_,
              testing::ElementsAre(layout::Lossless::kOn, layout::Lossless::kAsRegistered));
}

TEST_F(RecorderTest, ASlotThatWasMadeForARecordingGoesBackToItsActionsWithoutOne) {
  SlotIdentity identity = test::MakeSlotIdentity(
      std::make_shared<const SessionIdentity>(test::MakeIdentity("1", "run", INT64_MAX)), "x", 1);
  identity.registration.flags |= layout::kSlotLossless;
  identity.registration.print_every = 5;
  RecordRequest request;
  request.directory = dir_ / "a.cgrec";
  request.run_id = "run";
  ASSERT_TRUE(recorder_.Start(request).ok());
  Open(std::make_shared<const SlotIdentity>(identity), 0);
  EXPECT_THAT(lossless_, testing::IsEmpty()) << "as it is registered";
  ASSERT_TRUE(recorder_.Stop("", StopReason::kRequested).ok());
  EXPECT_THAT(lossless_, testing::ElementsAre(layout::Lossless::kOff));
  const auto reader = recording::RecordingReader::Open(request.directory);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->slots().at(0).every, 1u);
}

TEST_F(RecorderTest, ALossyRecordingKnowsWhichReplaysItsProbesLeaveOut) {
  SlotIdentity identity = test::MakeSlotIdentity(session_, "x", 1);
  identity.registration.print_every = 5;
  Open(std::make_shared<const SlotIdentity>(identity), 0);
  Start();
  ASSERT_TRUE(recorder_.Stop("", StopReason::kRequested).ok());
  const auto reader = recording::RecordingReader::Open(dir_ / "a.cgrec");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->slots().at(0).every, 5u);
}

TEST_F(RecorderTest, OnTheDiskAreOnlyTheSlotsThatWantToBe) {
  Open(MakeSlot(/*to_disk=*/true), 0);
  Open(MakeSlot(/*to_disk=*/false), 0);
  EXPECT_EQ(recorder_.List().front().slot_count, 1u);
}

TEST_F(RecorderTest, StopWithoutANameLeavesWhatJobsAskedFor) {
  Open(MakeSlot(/*to_disk=*/true), 0);
  EXPECT_FALSE(recorder_.Stop("", StopReason::kRequested).ok());
  Start();
  const auto stopped = recorder_.Stop("", StopReason::kRequested);
  ASSERT_TRUE(stopped.ok()) << stopped.error().message;
  EXPECT_EQ(stopped->size(), 1u);
  EXPECT_TRUE(recorder_.busy());
}

TEST_F(RecorderTest, ShowsTheJobThatCannotBeRecorded) {
  std::ofstream(dir_ / "runs") << "a file where the folder would be";
  Open(MakeSlot(/*to_disk=*/true), 0);
  EXPECT_EQ(Status().stopped, StopReason::kWriteError);
  EXPECT_NE(Status().error, "");
  EXPECT_EQ(told_.size(), 1u);
}

}  // namespace
}  // namespace cgdebug::pipeline
