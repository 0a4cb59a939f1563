#include "daemon/ingest/ordered_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace cgdebug::ingest {
namespace {

TEST(OrderedPool, CommitsInOrderOnTheCallingThreadWhatWasPrepared) {
  for (const std::size_t workers : {0u, 1u, 3u}) {
    OrderedPool pool(workers);
    for (const std::size_t count : {0u, 1u, 2u, 7u, 500u}) {
      std::vector<int> prepared(count, 0);
      std::vector<std::size_t> committed;
      pool.Run(
          count, [&](std::size_t i) { prepared[i] = 1; },
          [&, self = std::this_thread::get_id()](std::size_t i) {
            EXPECT_EQ(std::this_thread::get_id(), self);
            EXPECT_EQ(prepared[i], 1);
            committed.push_back(i);
          });
      ASSERT_EQ(committed.size(), count);
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(committed[i], i);
    }
  }
}

TEST(OrderedPool, PreparesAsManyAsItHasWorkersAndTwoAheadAtMost) {
  OrderedPool pool(2);
  std::atomic<int> ahead = 0, most = 0;
  pool.Run(
      200,
      [&](std::size_t) {
        const int now = ++ahead;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
      },
      [&](std::size_t) { --ahead; });
  EXPECT_LE(most, 5);  // four, and the one that the caller waits for
  EXPECT_EQ(ahead, 0);
}

// A worker that is busy with the first one does not keep the others from being prepared.
TEST(OrderedPool, PreparesOthersWhileOneTakesLong) {
  OrderedPool pool(2);
  std::atomic<bool> second_prepared = false;
  pool.Run(
      4,
      [&](std::size_t i) {
        if (i == 0) second_prepared.wait(false);
        if (i == 1) {
          second_prepared = true;
          second_prepared.notify_all();
        }
      },
      [](std::size_t) {});
  EXPECT_TRUE(second_prepared);
}

}  // namespace
}  // namespace cgdebug::ingest
