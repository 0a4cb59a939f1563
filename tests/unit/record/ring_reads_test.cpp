// What a recording that ends waits for. The test is the ingest thread.
#include "daemon/record/ring_reads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace cgdebug::pipeline {
namespace {

using std::chrono::milliseconds;

constexpr auto kPatience = milliseconds(1);

class Drain : public ::testing::Test {
 protected:
  void SetUp() override {
    drained_ = std::async(std::launch::async,
                          [this] { return reads_.Drain([](const RingHeads&) {}, kPatience); });
    bool is_wanted = false;
    while (!is_wanted) {
      reads_.Serve([](const RingRequest&) { return RingContent{}; },
                   [&] {
                     is_wanted = true;
                     return RingHeads{{.ordinal = 1000}};
                   });
    }
  }
  void TearDown() override { reads_.End(); }

  void Pass(std::uint64_t unread) {
    reads_.Settle([&](const RingHead&) { return unread; });
  }
  bool IsOver() const { return drained_.wait_for(milliseconds(0)) == std::future_status::ready; }

  RingReads reads_;
  std::future<bool> drained_;
};

TEST_F(Drain, ReadsOnForAsLongAsItGetsOn) {
  for (std::uint64_t unread = 1000; unread > 0; --unread) {
    Pass(unread);
    ASSERT_FALSE(IsOver()) << unread << " unread";
    if (unread % 100 == 0) EXPECT_EQ(drained_.wait_for(3 * kPatience), std::future_status::timeout);
  }
  Pass(0);
  EXPECT_TRUE(drained_.get());
}

TEST_F(Drain, WaitsWhileTheIngestThreadWaitsForTheDisk) {
  Pass(10);
  EXPECT_EQ(drained_.wait_for(20 * kPatience), std::future_status::timeout);
  Pass(0);
  EXPECT_TRUE(drained_.get());
}

TEST_F(Drain, GivesUpARingThatIsLookedAtAndNotRead) {
  while (!IsOver()) Pass(10);
  EXPECT_FALSE(drained_.get());
}

}  // namespace
}  // namespace cgdebug::pipeline
