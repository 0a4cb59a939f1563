// Captured probes that are changed while they replay, seen from the job and from the daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>

#include "libprobe/ring/segment/segment_view.h"
#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using testing::HasSubstr;

class LiveControlTest : public testing::Test {
 protected:
  testing_support::TempDir directory_;

  // Returns when the daemon has written it into the job's memory.
  void Set(DaemonProcess& daemon, const ProducerProcess& job, const v1::Control& control,
           std::uint64_t ttl_ms = 60'000) {
    v1::SetRequest request;
    request.set_session(job.key());
    request.add_probes("x");
    *request.mutable_control() = control;
    request.set_ttl_ms(ttl_ms);
    const auto reply = daemon.Connect().Ask<v1::SetReply>(request);
    ASSERT_TRUE(reply.ok()) << reply.error().message;
    EXPECT_EQ(reply->slots(), 1u);
    ASSERT_TRUE(WaitUntil([&] {
      const auto probe = daemon.Probe(job.key(), "x");
      return probe->control().mode() == control.mode();
    }));
  }
  static v1::Control Mode(v1::Control::Mode mode) {
    v1::Control control;
    control.set_mode(mode);
    return control;
  }
  std::uint64_t Produced(DaemonProcess& daemon, const ProducerProcess& job) {
    return daemon.Session(job.key())->counters().produced();
  }
};

TEST_F(LiveControlTest, ProbeThatIsOffProducesNothingUntilItIsOnAgain) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("x")});
  job.Write(0, 2);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 2));
  Set(daemon, job, Mode(v1::Control::OFF));
  job.Write(0, 5);
  Set(daemon, job, Mode(v1::Control::AS_REGISTERED));
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 3));
  EXPECT_EQ(daemon.Get(job.key(), "x").reply.snapshot().replay(), 8u);
  EXPECT_EQ(Produced(daemon, job), 3u);
}

TEST_F(LiveControlTest, StatisticsComeWithoutValues) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("x")});
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
  Set(daemon, job, Mode(v1::Control::STATS));
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 2));
  const auto probe = daemon.Probe(job.key(), "x");
  EXPECT_EQ(probe->last_stats().max(), 2 + 7);
  EXPECT_EQ(probe->replay(), 2u);
}

TEST_F(LiveControlTest, CountedSnapshotsEndByThemselves) {
  DaemonProcess daemon(directory_);
  SlotSpec spec = Recording("x", 64);
  spec.record_every = 1000;
  ProducerProcess job({spec});
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
  v1::Control control = Mode(v1::Control::FULL);
  control.set_every(2);
  control.set_until(5);  // three snapshots, two replays apart, from the next replay on
  Set(daemon, job, control);
  job.Write(0, 20);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 4));
  EXPECT_EQ(daemon.Get(job.key(), "x").reply.snapshot().replay(), 6u);
  EXPECT_TRUE(WaitUntil([&] { return !daemon.Probe(job.key(), "x")->has_control(); }));
  EXPECT_EQ(Produced(daemon, job), 4u);
}

TEST_F(LiveControlTest, ConditionSendsValuesOnlyWhereItHolds) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("x", 64)});
  job.WriteValue(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
  v1::Control control = Mode(v1::Control::FULL);
  control.set_trigger(v1::Control::ABS_MAX);
  control.set_threshold(100);
  Set(daemon, job, control);
  for (const float value : {2.f, 500.f, 3.f}) job.WriteValue(0, value);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 4));
  EXPECT_EQ(daemon.Probe(job.key(), "x")->last_stats().max(), 3);
  const client::Tensor kept = daemon.Get(job.key(), "x", 3);
  EXPECT_EQ(kept.payload.size(), 8 * sizeof(float));
}

TEST_F(LiveControlTest, WhatIsAskedForIsComparedWhateverThePeriodIs) {
  DaemonProcess daemon(directory_);
  SlotSpec spec = Recording("x", 64);
  spec.compare_every = 1000;
  spec.expected = 1;
  ProducerProcess job({spec});
  job.WriteValue(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
  Set(daemon, job, Mode(v1::Control::FULL));
  job.WriteValue(0, 2);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 2));
  EXPECT_EQ(daemon.Probe(job.key(), "x")->verdict().state(), v1::Verdict::FAIL);
  EXPECT_EQ(daemon.Probe(job.key(), "x")->verdict().first_failed_replay(), 2u);
}

TEST_F(LiveControlTest, EndsInTimeWithoutTheDaemonThatSetIt) {
  ProducerProcess job({Recording("x", 64)});
  const auto begin = std::chrono::steady_clock::now();
  {
    DaemonProcess daemon(directory_);
    job.Write(0, 1);
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
    Set(daemon, job, Mode(v1::Control::OFF), /*ttl_ms=*/4'000);
    job.Write(0, 1);
    daemon.Kill();
  }
  const bool was_in_time = std::chrono::steady_clock::now() - begin < std::chrono::seconds(4);
  std::string reason;
  const auto view = ring::SegmentView::Attach(job.segment(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  const auto ring = view->OpenSlot(0, &reason);
  ASSERT_TRUE(ring.has_value()) << reason;
  if (was_in_time) EXPECT_EQ(ring->accepted(), 1u);
  ASSERT_TRUE(WaitUntil([&] {
    job.Write(0, 1);
    return ring->accepted() > 1;
  }));
}

TEST_F(LiveControlTest, NextDaemonShowsAndEndsWhatAnEarlierOneSet) {
  ProducerProcess job({Recording("x", 64)});
  {
    DaemonProcess daemon(directory_);
    job.Write(0, 1);
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
    Set(daemon, job, Mode(v1::Control::OFF), /*ttl_ms=*/0);
    daemon.Kill();
  }
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key()).has_value(); }));
  EXPECT_EQ(daemon.Probe(job.key(), "x")->control().mode(), v1::Control::OFF);
  Set(daemon, job, Mode(v1::Control::AS_REGISTERED));
  job.Write(0, 1);
  EXPECT_TRUE(daemon.WaitForConsumed(job.key(), "x", 2));
}

TEST_F(LiveControlTest, SenselessControlsAreRefusedWithASentence) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("x")});
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
  const auto refusal = [&](const std::string& probe, const v1::Control& control) {
    v1::SetRequest request;
    if (!probe.empty()) request.add_probes(probe);
    *request.mutable_control() = control;
    const auto reply = daemon.Connect().Ask<v1::SetReply>(request);
    return reply.ok() ? "" : reply.error().message;
  };
  EXPECT_THAT(refusal("", Mode(v1::Control::OFF)), HasSubstr("which probes?"));
  EXPECT_THAT(refusal("y", Mode(v1::Control::OFF)), HasSubstr("no probe matches 'y'"));
  v1::Control control = Mode(v1::Control::STATS);
  control.set_trigger(v1::Control::INF);
  EXPECT_THAT(refusal("x", control), HasSubstr("mode full"));
  control = Mode(v1::Control::FULL);
  control.set_trigger(v1::Control::ABS_MAX);
  control.set_threshold(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(refusal("x", control), HasSubstr("threshold"));
  control = Mode(v1::Control::FULL);
  control.set_from(9);
  control.set_until(3);
  EXPECT_THAT(refusal("x", control), HasSubstr("before the first"));
}

}  // namespace
}  // namespace cgdebug::test
