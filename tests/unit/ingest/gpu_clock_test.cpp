// A GPU's clock, with times that no clock told.
#include "daemon/ingest/gpu_clock.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

namespace cgdebug::ingest {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMs;
constexpr std::int64_t kDay = 86'400 * kSecond;
constexpr std::int64_t kStart = 20'000 * kDay;  // of the job
constexpr std::int64_t kNow = kStart + 10 * kDay;

class DriftingClock : public ::testing::Test {
 protected:
  // Something was committed at `host_ns`; the daemon looked `before_ns` earlier and `after_ns`
  // later.
  void Commit(std::int64_t host_ns, std::int64_t before_ns = kMs / 2,
              std::int64_t after_ns = kMs / 2) {
    clock_.See(host_ns - lag_ns_, host_ns - before_ns, host_ns + after_ns);
  }
  // How far what is shown is from the truth.
  std::int64_t ErrorAt(std::int64_t host_ns) const {
    return clock_.ToHost(host_ns - lag_ns_) - host_ns;
  }

  GpuClock clock_{kStart};
  std::int64_t lag_ns_ = 0;
};

TEST_F(DriftingClock, AClockThatAgreesIsLeftAsItIs) {
  for (std::int64_t at = kNow; at < kNow + kSecond; at += 7 * kMs) {
    Commit(at, 3 * kMs, 20 * kMs);
    EXPECT_EQ(ErrorAt(at), 0);
  }
}

TEST_F(DriftingClock, OneThatFallsBehindIsFollowed) {
  for (int second = 0; second < 100'000; second += 10) {
    lag_ns_ = second * std::int64_t{8'700};
    Commit(kNow + second * kSecond);
    EXPECT_LE(std::abs(ErrorAt(kNow + second * kSecond)), 3 * kMs);
  }
  EXPECT_GT(lag_ns_, 800 * kMs);
}

TEST_F(DriftingClock, OneThatRunsAheadIsFollowed) {
  for (int second = 0; second < 100'000; second += 10) {
    lag_ns_ = second * std::int64_t{-8'700};
    Commit(kNow + second * kSecond);
    EXPECT_LE(std::abs(ErrorAt(kNow + second * kSecond)), 3 * kMs);
  }
}

TEST_F(DriftingClock, ACommitThatIsSeenLateMovesNothing) {
  Commit(kNow, kMs, 3600 * kSecond);
  EXPECT_EQ(ErrorAt(kNow), 0);
  clock_.See(kNow + kSecond, std::nullopt, kNow + 3600 * kSecond);  // what lay there at the start
  EXPECT_EQ(ErrorAt(kNow + kSecond), 0);
}

TEST_F(DriftingClock, ATimestampInTheFutureIsProof) {
  clock_.See(kNow + 5 * kSecond, std::nullopt, kNow);
  EXPECT_EQ(clock_.ToHost(kNow + 5 * kSecond), kNow);
  EXPECT_FALSE(clock_.known());  // it may be further ahead than that
}

TEST_F(DriftingClock, ASilentDaySaysNothingAndTheNextCommitTells) {
  lag_ns_ = 2 * kSecond;
  Commit(kNow);
  const std::int64_t before = ErrorAt(kNow);
  lag_ns_ = 3 * kSecond;
  Commit(kNow + kDay);
  EXPECT_LE(std::abs(ErrorAt(kNow + kDay)), kMs);
  lag_ns_ = 2 * kSecond;
  EXPECT_EQ(ErrorAt(kNow), before);  // what was shown is shown again
}

TEST_F(DriftingClock, AllCommitsOfALookAreCorrectedAlike) {
  Commit(kNow);
  clock_.BeginLook();
  lag_ns_ = 300 * kMs;
  const std::int64_t first = kNow + 36'000 * kSecond;
  Commit(first + 4 * kMs, 5 * kMs);  // the newest of five
  for (int i = 0; i < 5; ++i) EXPECT_LE(std::abs(ErrorAt(first + i * kMs)), 6 * kMs);
}

TEST_F(DriftingClock, AStallBetweenTheStampAndTheCommitIsUndoneByTheNextCommit) {
  Commit(kNow);
  clock_.See(kNow + kSecond, kNow + 2 * kSecond, kNow + 2 * kSecond + kMs);
  Commit(kNow + 3 * kSecond);
  EXPECT_LE(std::abs(ErrorAt(kNow + 3 * kSecond)), kMs);
}

TEST_F(DriftingClock, AHostClockThatIsSetIsFollowedBothWays) {
  Commit(kNow);
  for (const std::int64_t step : {5 * kSecond, -7 * kSecond}) {
    lag_ns_ += step;
    // The first look since then was before the step.
    clock_.See(kNow + kSecond - lag_ns_, kNow + kSecond - kMs - step, kNow + kSecond + kMs);
    Commit(kNow + 2 * kSecond);
    EXPECT_LE(std::abs(ErrorAt(kNow + 2 * kSecond)), kMs);
  }
}

// What was committed before the daemon came lies on the line between the clocks' agreement and the
// first commit that was seen.
TEST_F(DriftingClock, WhatCameBeforeTheFirstCommitDriftedEvenly) {
  EXPECT_FALSE(clock_.known());
  lag_ns_ = 10 * kSecond;
  clock_.See(kNow - kSecond - lag_ns_, std::nullopt, kNow);
  EXPECT_FALSE(clock_.known());
  Commit(kNow);
  EXPECT_TRUE(clock_.known());
  EXPECT_LE(std::abs(ErrorAt(kNow)), kMs);
  EXPECT_LE(std::abs(ErrorAt(kNow - kSecond)), kMs);
  lag_ns_ = 5 * kSecond;
  EXPECT_LE(std::abs(ErrorAt(kStart + 5 * kDay)), kMs);
  lag_ns_ = 0;
  EXPECT_LE(std::abs(ErrorAt(kStart)), kMs);
  EXPECT_EQ(ErrorAt(kStart - kDay), 0);
}

TEST_F(DriftingClock, NoTimestampIsTooStrange) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  GpuClock set_anywhere(kLeast);
  for (GpuClock* clock : {&clock_, &set_anywhere}) {
    for (const std::int64_t strange : {kLeast, std::int64_t{0}, kMost, kMost / 4, kMost / 2}) {
      clock->See(strange, kNow - kMs, kNow);
      for (const std::int64_t told : {kLeast, std::int64_t{0}, kNow, kMost / 4, kMost}) {
        clock->ToHost(told);
      }
    }
    clock->See(kNow, kNow - kMs, kNow + kMs);
    EXPECT_LE(std::abs(clock->ToHost(kNow) - kNow), kMs);
  }
}

}  // namespace
}  // namespace cgdebug::ingest
