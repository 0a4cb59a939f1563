#include "libprobe/capture/kernels/content_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace cgdebug::capture {
namespace {

using Words = std::vector<std::uint64_t>;
using Both = std::pair<std::uint64_t, std::uint64_t>;

Both HashOf(const Words& words) {
  ContentHash hash;
  for (std::size_t i = 0; i < words.size(); ++i) hash.Add(words[i], i);
  return {hash.low, hash.high};
}

// Every hash that was asked for; no half of one may come twice.
class Distinct {
 public:
  bool IsNew(const Words& words) {
    const Both both = HashOf(words);
    return low_.insert(both.first).second && high_.insert(both.second).second;
  }

 private:
  std::set<std::uint64_t> low_, high_;
};

Words Floats(std::size_t count, const std::function<float(std::size_t)>& value) {
  Words words(count / 2);
  for (std::size_t i = 0; i < count; ++i) {
    const float element = value(i);
    std::memcpy(reinterpret_cast<char*>(words.data()) + 4 * i, &element, sizeof(element));
  }
  return words;
}

TEST(ContentHash, DoesNotDependOnTheOrderInWhichThreadsAddUp) {
  std::mt19937_64 random(1);
  Words words(1000);
  for (std::uint64_t& word : words) word = random();
  std::vector<ContentHash> threads(7);
  for (std::size_t i = words.size(); i-- > 0;) threads[i % 7].Add(words[i], i);
  ContentHash sum;
  for (const ContentHash& thread : threads) {
    sum.low += thread.low;
    sum.high += thread.high;
  }
  EXPECT_EQ(Both(sum.low, sum.high), HashOf(words));
}

TEST(ContentHash, SeesEveryBit) {
  for (const std::uint64_t fill : {0ul, ~0ul, 0x3f8000003f800000ul}) {
    Words words(64, fill);
    Distinct distinct;
    EXPECT_TRUE(distinct.IsNew(words));
    for (int bit = 0; bit < 64 * 64; ++bit) {
      words[bit / 64] ^= std::uint64_t{1} << bit % 64;
      EXPECT_TRUE(distinct.IsNew(words)) << bit;
      words[bit / 64] ^= std::uint64_t{1} << bit % 64;
    }
  }
}

TEST(ContentHash, SeesEveryPairOfBitsThatFlipTogether) {
  Words words(8, 0);
  Distinct distinct;
  for (int one = 0; one < 512; ++one) {
    for (int other = 0; other < one; ++other) {
      words[one / 64] ^= std::uint64_t{1} << one % 64;
      words[other / 64] ^= std::uint64_t{1} << other % 64;
      ASSERT_TRUE(distinct.IsNew(words)) << one << ' ' << other;
      std::ranges::fill(words, 0);
    }
  }
}

TEST(ContentHash, SeesSignsAndPlaces) {
  constexpr std::size_t kCount = 4096;
  constexpr std::size_t kRow = 64;
  const auto wave = [](std::size_t i) { return static_cast<float>(i % 37) - 18; };
  Distinct distinct;
  EXPECT_TRUE(distinct.IsNew(Floats(kCount, wave)));
  EXPECT_TRUE(distinct.IsNew(Floats(kCount, [&](std::size_t i) { return -wave(i); })));
  EXPECT_TRUE(distinct.IsNew(Floats(kCount, [&](std::size_t i) { return wave(i ^ 1); })));
  EXPECT_TRUE(distinct.IsNew(Floats(kCount, [&](std::size_t i) { return wave(i ^ kRow); })));
  EXPECT_TRUE(distinct.IsNew(Floats(kCount, [&](std::size_t i) { return wave(kCount - 1 - i); })));
  EXPECT_TRUE(distinct.IsNew(
      Floats(kCount, [&](std::size_t i) { return wave(i % kRow * (kCount / kRow) + i / kRow); })));
  EXPECT_TRUE(distinct.IsNew(Floats(kCount, [](std::size_t) { return 0.0f; })));
  EXPECT_TRUE(distinct.IsNew(Floats(kCount, [](std::size_t) { return -0.0f; })));
  EXPECT_TRUE(distinct.IsNew(Floats(kCount, [](std::size_t i) { return i == 9 ? -0.0f : 0; })));
}

// A one that wanders, and two ones at every distance: the sums of a weaker hash repeat here.
TEST(ContentHash, SeesWhereSparseValuesLie) {
  constexpr std::size_t kWords = 256;
  Words words(kWords, 0);
  Distinct distinct;
  for (std::size_t one = 0; one < kWords; ++one) {
    for (std::size_t other = one; other < kWords; ++other) {
      words[one] = words[other] = 0x3f800000;
      ASSERT_TRUE(distinct.IsNew(words)) << one << ' ' << other;
      words[one] = words[other] = 0;
    }
  }
}

// The words that cancel out in one half: the other half tells them apart.
TEST(ContentHash, WordsThatCancelOutInOneHalfDoNotInTheOther) {
  constexpr std::uint64_t kStepOfLow = 0x9e3779b97f4a7c15;
  constexpr std::uint64_t kStepOfHigh = 0xd1342543de82ef95;
  const Words words = {123, 456};
  const Both hash = HashOf(words);
  const Both low = HashOf({456 + kStepOfLow, 123 - kStepOfLow});
  EXPECT_EQ(low.first, hash.first) << "what a half alone would take for the same";
  EXPECT_NE(low.second, hash.second);
  const Both high = HashOf({456 + kStepOfHigh, 123 - kStepOfHigh});
  EXPECT_EQ(high.second, hash.second);
  EXPECT_NE(high.first, hash.first);
}

// If the bits of a window of 32 were not evenly spread, many of these 2^15 hashes would be equal in
// it: of random ones, an eighth of a pair is.
TEST(ContentHash, EveryWindowOfItsBitsIsSpreadEvenly) {
  constexpr std::size_t kHashes = 1 << 15;
  std::vector<Both> hashes;
  for (std::size_t i = 0; i < kHashes; ++i) hashes.push_back(HashOf({i, 0, i % 5}));
  for (const bool second : {false, true}) {
    for (int shift = 0; shift <= 32; shift += 8) {
      std::vector<std::uint32_t> windows;
      for (const Both& both : hashes) {
        windows.push_back(static_cast<std::uint32_t>((second ? both.second : both.first) >> shift));
      }
      std::ranges::sort(windows);
      std::size_t equal = 0;
      for (std::size_t i = 1; i < windows.size(); ++i) equal += windows[i] == windows[i - 1];
      EXPECT_LT(equal, 5u) << shift;
    }
  }
}

}  // namespace
}  // namespace cgdebug::capture
