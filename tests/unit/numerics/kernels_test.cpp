// Edge cases of the loops for a CPU's vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "daemon/core/numerics/kernels/cpu.h"
#include "daemon/core/numerics/stats.h"
#include "proto/layout/ordered_hash.h"
#include "tests/unit/numerics/numerics_test_util.h"

namespace cgdebug::numerics {
namespace {

using layout::Dtype;

// On every CPU: `count` elements, `first` and `second` in turn, with one `odd` in the last whole
// vector.
template <typename T>
void ExpectExactSums(Dtype dtype, T first, T second, T odd) {
  constexpr std::size_t kCount = 1'100'003;
  std::vector<T> values(kCount, first);
  for (std::size_t i = 1; i < kCount; i += 2) values[i] = second;
  values[kCount - 5] = odd;
  long double sum = 0, absolute = 0, squared = 0, around = 0;
  for (const T value : values) {
    sum += value;
    absolute += std::fabs(static_cast<long double>(value));
    squared += static_cast<long double>(value) * value;
  }
  const long double mean = sum / kCount;
  for (const T value : values) around += (value - mean) * (value - mean);
  const TestTensor tensor = Vector(dtype, values);
  for (const Cpu cpu : AvailableCpus()) {
    const WithCpu chosen(cpu);
    const Stats stats = ComputeStats(tensor.view());
    SCOPED_TRACE(testing::Message() << "cpu " << static_cast<int>(cpu));
    EXPECT_EQ(stats.min, std::min({first, second, odd}));
    EXPECT_EQ(stats.max, std::max({first, second, odd}));
    EXPECT_EQ(stats.zero, static_cast<std::uint64_t>(std::count(values.begin(), values.end(), 0)));
    EXPECT_NEAR(stats.mean, static_cast<double>(mean), 1e-13 * stats.abs_max);
    EXPECT_NEAR(stats.std, static_cast<double>(std::sqrt(around / kCount)), 1e-13 * stats.abs_max);
    EXPECT_NEAR(stats.l1, static_cast<double>(absolute), 1e-13 * stats.l1);
    EXPECT_NEAR(stats.l2, static_cast<double>(std::sqrt(squared)), 1e-13 * stats.l2);
  }
}

TEST(StatsKernel, LongRunsOfTheEndsOfIntegersAreExact) {
  ExpectExactSums<std::int8_t>(Dtype::kInt8, -128, -128, 127);
  ExpectExactSums<std::int8_t>(Dtype::kInt8, -128, 127, 0);
  ExpectExactSums<std::uint8_t>(Dtype::kUint8, 255, 255, 0);
  ExpectExactSums<std::uint8_t>(Dtype::kUint8, 0, 255, 254);
  ExpectExactSums<std::uint16_t>(Dtype::kUint16, 40'000, 40'000, 1);
  ExpectExactSums<std::uint16_t>(Dtype::kUint16, 65'535, 65'535, 0);
  ExpectExactSums<std::uint16_t>(Dtype::kUint16, 0, 65'535, 32'768);
  ExpectExactSums<std::int16_t>(Dtype::kInt16, -32768, -32768, 32767);
  ExpectExactSums<std::int16_t>(Dtype::kInt16, 32767, 32767, -32768);
  ExpectExactSums<std::int16_t>(Dtype::kInt16, -32768, 32767, 0);
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kNarrow = (1 << 26) - 1;  // beyond it kernels go over to doubles
  ExpectExactSums<std::int32_t>(Dtype::kInt32, kNarrow, kNarrow, -kNarrow);
  ExpectExactSums<std::int32_t>(Dtype::kInt32, -kNarrow, kNarrow, kNarrow + 1);
  ExpectExactSums<std::int32_t>(Dtype::kInt32, -kNarrow, -kNarrow, kMin);
  ExpectExactSums<std::int32_t>(Dtype::kInt32, kMin, ~kMin, 0);
}

TEST(StatsKernel, TheOrderedHashIsThatOfTheDefinitionOnEveryCpu) {
  for (std::size_t count = 0; count < 2'100; count += count < 150 ? 1 : 61) {
    std::vector<std::uint16_t> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint16_t>(40'503 * i * i);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += layout::OrderedTermOf(i, values[i]);
    const TestTensor tensor = Vector(Dtype::kUint16, values);
    for (const Cpu cpu : AvailableCpus()) {
      const WithCpu chosen(cpu);
      EXPECT_EQ(ComputeStats(tensor.view()).ordered_hash, layout::OrderedHash(sum))
          << count << " elements, cpu " << static_cast<int>(cpu);
    }
  }
}

TEST(StatsKernel, EveryByteButZeroIsTrueOnEveryCpu) {
  std::vector<std::uint8_t> bytes(70'001);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i % 256);
  for (const Cpu cpu : AvailableCpus()) {
    const WithCpu chosen(cpu);
    const Stats stats = ComputeStats(Vector(Dtype::kBool, bytes).view());
    EXPECT_EQ(stats.zero, 274u);
    EXPECT_EQ(stats.hash, 1u);
    EXPECT_EQ(stats.l1, 69'727);
    EXPECT_EQ(stats.max, 1);
    const Stats all =
        ComputeStats(Vector(Dtype::kBool, std::vector<std::uint8_t>(512, 128)).view());
    EXPECT_EQ(all.min, 1);
    EXPECT_EQ(all.std, 0);
    EXPECT_EQ(all.hash, 0u);
    const Stats none = ComputeStats(Vector(Dtype::kBool, std::vector<std::uint8_t>(512, 0)).view());
    EXPECT_EQ(none.max, 0);
    EXPECT_EQ(none.zero, 512u);
  }
}

template <typename Bits>
void ExpectSameCounts(Dtype dtype, const std::vector<Bits>& bits) {
  const TestTensor tensor = Vector(dtype, bits);
  Stats plain;
  for (const Cpu cpu : AvailableCpus()) {  // the plain one first
    const WithCpu chosen(cpu);
    const Stats stats = ComputeStats(tensor.view());
    if (cpu == Cpu::kPlain) plain = stats;
    EXPECT_EQ(stats.nan, plain.nan);
    EXPECT_EQ(stats.first_nonfinite, plain.first_nonfinite);
    EXPECT_EQ(stats.zero, plain.zero);
    EXPECT_EQ(stats.subnormal, plain.subnormal);
    EXPECT_EQ(stats.hash, plain.hash);
    EXPECT_EQ(stats.min, plain.min);
    EXPECT_EQ(stats.max, plain.max);
    EXPECT_NEAR(stats.std, plain.std, 2e-6 * plain.abs_max);
    EXPECT_NEAR(stats.l1, plain.l1, 2e-6 * plain.l1);
    EXPECT_NEAR(stats.l2, plain.l2, 2e-6 * plain.l2);
  }
}

// `first_special`: the least magnitude that is not finite.
template <typename Bits>
void ExpectSameSmallFloats(Dtype dtype, unsigned min_normal, unsigned first_special) {
  constexpr std::size_t kCount = 65'536 + 7;
  constexpr Bits kSign = static_cast<Bits>(1u << (8 * sizeof(Bits) - 1));
  const auto fill = [&](auto bits_of) {
    std::vector<Bits> bits(kCount);
    for (std::size_t i = 0; i < kCount; ++i) bits[i] = static_cast<Bits>(bits_of(i));
    return bits;
  };
  const auto sign = [&](std::size_t i) { return i / 3 % 2 == 0 ? kSign : Bits{0}; };
  ExpectSameCounts(dtype, fill([&](std::size_t i) { return i * 17; }));
  // One of each magnitude, so that none cancels out in the hash.
  ExpectSameCounts(dtype, fill([&](std::size_t i) { return i < first_special ? i : min_normal; }));
  ExpectSameCounts(dtype, fill([&](std::size_t i) { return i % first_special | sign(i); }));
  ExpectSameCounts(dtype, fill([&](std::size_t i) { return i % first_special | kSign; }));
  ExpectSameCounts(dtype, fill([&](std::size_t i) { return i % min_normal | sign(i); }));
  ExpectSameCounts(dtype, fill([&](std::size_t i) { return i % 3 == 0 ? kSign : Bits{0}; }));
  const unsigned normals = first_special - min_normal;
  std::vector<Bits> normal =
      fill([&](std::size_t i) { return (min_normal + i % normals) | kSign; });
  ExpectSameCounts(dtype, normal);
  for (const std::size_t at : {std::size_t{0}, std::size_t{511}, kCount - 8, kCount - 1}) {
    std::vector<Bits> with_nan = normal;
    with_nan[at] = static_cast<Bits>(~0u);
    ExpectSameCounts(dtype, with_nan);
  }
}

TEST(StatsKernel, SmallFloatsAreCountedAsInThePlainLoops) {
  ExpectSameSmallFloats<std::uint8_t>(Dtype::kFloat8E4m3fn, 0x08, 0x7f);
  ExpectSameSmallFloats<std::uint8_t>(Dtype::kFloat8E5m2, 0x04, 0x7c);
  ExpectSameSmallFloats<std::uint16_t>(Dtype::kFloat16, 0x0400, 0x7c00);
  ExpectSameSmallFloats<std::uint16_t>(Dtype::kBfloat16, 0x0080, 0x7f80);
}

// Actual i is change(i, expected i), and expected goes through all magnitudes and both signs.
template <typename Change>
void ExpectSameFloats(const Change& change) {
  constexpr std::size_t kCount = 3 * 2048 + 72;  // blocks, and one of whole vectors and more
  std::vector<float> expected(kCount), actual(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float magnitude =
        std::ldexp(1 + static_cast<float>(i % 77) / 77, static_cast<int>(i * 7 % 40) - 20);
    expected[i] = i % 3 == 0 ? -magnitude : magnitude;
    actual[i] = change(i, expected[i]);
  }
  for (const auto& [rtol, atol] : {std::pair{1.3e-6, 1e-5}, {0.0, 0.0}, {1e-3, 0.0}, {0.0, 0.5}}) {
    SCOPED_TRACE(testing::Message() << "rtol " << rtol << " atol " << atol);
    ExpectSameOnEveryCpu(F32(actual), F32(expected), {.rtol = rtol, .atol = atol});
    ExpectSameOnEveryCpu(F32(expected), F32(actual), {.rtol = rtol, .atol = atol});
  }
}

TEST(CompareKernel, RatiosThatStayRiseAndFallAreThoseOfThePlainLoops) {
  ExpectSameFloats([](std::size_t, float x) { return 2 * x; });
  ExpectSameFloats([](std::size_t, float x) { return 3 * x; });
  ExpectSameFloats([](std::size_t i, float x) { return x * (1 + static_cast<float>(i) * 1e-3f); });
  ExpectSameFloats([](std::size_t i, float x) { return x * (1 + 1 / static_cast<float>(i + 1)); });
  ExpectSameFloats([](std::size_t i, float x) { return i % 512 == 511 ? x + 1 : x; });
  ExpectSameFloats([](std::size_t i, float x) { return i % 5 == 0 ? 0 : -x; });
}

TEST(CompareKernel, PairsAtTheToleranceAreThoseOfThePlainLoops) {
  ExpectSameFloats([](std::size_t i, float x) {
    const double bound = 1e-5 + 1.3e-6 * std::fabs(static_cast<double>(x));
    const auto at = static_cast<float>(x + bound);
    return i % 3 == 0 ? at : std::nextafter(at, i % 3 == 1 ? -1e30f : 1e30f);
  });
  ExpectSameFloats([](std::size_t i, float x) { return i % 2 == 0 ? x + 0.5f : x - 0.5f; });
}

TEST(CompareKernel, EndsOfTheRangeAreThoseOfThePlainLoops) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const float ends[] = {0.0f,  -0.0f,    1e-45f, -1e-45f, 3e-39f, 0x1p-126f, 0x1p-90f, 1.0f,
                        -1.0f, 0x1p126f, kMax,   -kMax,   kInf,   -kInf,     kNan,     -kNan};
  constexpr std::size_t kEnds = std::size(ends);
  for (const std::size_t every : {1u, 64u, 2047u}) {
    ExpectSameFloats([&](std::size_t i, float x) {
      return i % every == every - 1 ? ends[i / every % kEnds] : x * 1.5f;
    });
  }
  std::vector<float> actual, expected;  // every pair, in a block of its own and in one with others
  for (const float a : ends) {
    for (const float b : ends) {
      actual.push_back(a);
      expected.push_back(b);
      ExpectSameOnEveryCpu(F32(std::vector<float>(8, a)), F32(std::vector<float>(8, b)),
                           {.rtol = 0, .atol = 0});
    }
  }
  for (const double tolerance : {0.0, 1e-5, 1e-100}) {
    ExpectSameOnEveryCpu(F32(actual), F32(expected), {.rtol = tolerance, .atol = tolerance});
  }
}

TEST(CompareKernel, DistancesOfEveryBinAreCounted) {
  for (const std::size_t count : {2048u, 2040u, 8u}) {
    for (const std::uint32_t few : {1u, 3u, 100u}) {  // one distance in this many is far
      std::vector<std::int32_t> actual(count), expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        const auto near = static_cast<std::uint32_t>(i % 3);
        const std::uint32_t distance = i % few == 0 ? (1u << (i / few % 32)) + near - 1 : near;
        expected[i] = std::numeric_limits<std::int32_t>::min() + static_cast<std::int32_t>(i % 2);
        actual[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(expected[i]) + distance);
      }
      ExpectSameOnEveryCpu(Vector(Dtype::kInt32, actual), Vector(Dtype::kInt32, expected),
                           {.rtol = 0, .atol = 0});
    }
  }
}

}  // namespace
}  // namespace cgdebug::numerics
