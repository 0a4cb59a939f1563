#include "daemon/pipeline/payload_pool.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace cgdebug::pipeline {
namespace {

constexpr std::size_t kLarge = 256u << 10;

std::vector<std::byte> Payload(std::size_t bytes) { return std::vector<std::byte>(bytes); }

// Which of the given sizes the pool keeps.
std::vector<std::size_t> Kept(PayloadPool* pool, const std::vector<std::size_t>& sizes) {
  std::vector<std::size_t> kept;
  for (const std::size_t size : sizes) {
    while (!pool->Take(size).empty()) kept.push_back(size);
  }
  return kept;
}

TEST(PayloadPool, GivesTheMemoryOutAgainWhenTheLastOwnerIsGone) {
  PayloadPool pool(4 * kLarge);
  PayloadPtr first = pool.Share(Payload(kLarge));
  const std::byte* memory = first->data();
  PayloadPtr second = first;
  first = nullptr;
  EXPECT_TRUE(pool.Take(kLarge).empty()) << "somebody still reads it";
  second = nullptr;
  const auto again = pool.Take(kLarge);
  EXPECT_EQ(again.size(), kLarge);
  EXPECT_EQ(again.data(), memory);
}

TEST(PayloadPool, GivesOutNoOtherSize) {
  PayloadPool pool(4 * kLarge);
  pool.Share(Payload(kLarge)) = nullptr;
  EXPECT_TRUE(pool.Take(2 * kLarge).empty());
  EXPECT_TRUE(pool.Take(kLarge / 2).empty());
}

TEST(PayloadPool, KeepsNoMoreThanItsLimitAndTheSizeInUse) {
  PayloadPool pool(4 * kLarge);
  for (std::vector<PayloadPtr> all; all.size() < 9;) all.push_back(pool.Share(Payload(kLarge)));
  EXPECT_EQ(Kept(&pool, {kLarge}).size(), 4u);

  for (const std::size_t size : {kLarge, kLarge, 2 * kLarge, kLarge + 1}) {
    pool.Share(Payload(size)) = nullptr;
  }
  EXPECT_EQ(Kept(&pool, {kLarge, 2 * kLarge, kLarge + 1}),
            (std::vector<std::size_t>{2 * kLarge, kLarge + 1}));
}

TEST(PayloadPool, LeavesWhatIsSmallOrBeyondItsLimitToTheAllocator) {
  PayloadPool pool(kLarge);
  pool.Share(Payload(512)) = nullptr;
  pool.Share(Payload(kLarge + 1)) = nullptr;
  EXPECT_TRUE(Kept(&pool, {512, kLarge + 1}).empty());
}

TEST(PayloadPool, MayBeGoneBeforeItsPayloads) {
  std::optional<PayloadPool> pool(std::in_place, kLarge);
  PayloadPtr payload = pool->Share(Payload(kLarge));
  pool.reset();
  EXPECT_EQ(payload->size(), kLarge);
}

}  // namespace
}  // namespace cgdebug::pipeline
