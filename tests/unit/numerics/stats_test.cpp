#include "daemon/core/numerics/stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "daemon/core/numerics/device_stats.h"
#include "daemon/core/numerics/float4_values.h"
#include "daemon/core/numerics/kernels/decode.h"
#include "tests/unit/numerics/numerics_test_util.h"

namespace cgdebug::numerics {
namespace {

using layout::Dtype;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();

TEST(Stats, FourNumbers) {
  const Stats stats = ComputeStats(F32({-1, 0, 1, 4}).view());
  EXPECT_EQ(stats.count, 4u);
  EXPECT_EQ(stats.zero, 1u);
  EXPECT_EQ(stats.min, -1);
  EXPECT_EQ(stats.max, 4);
  EXPECT_EQ(stats.abs_max, 4);
  EXPECT_EQ(stats.mean, 1);
  EXPECT_DOUBLE_EQ(stats.std, std::sqrt(14.0 / 4));
  EXPECT_EQ(stats.l1, 6);
  EXPECT_DOUBLE_EQ(stats.l2, std::sqrt(18.0));
  EXPECT_DOUBLE_EQ(stats.rms, std::sqrt(18.0 / 4));
  EXPECT_FALSE(stats.has_nonfinite);
}

TEST(Stats, OfVeryLargeAndVerySmallDoublesPassThroughTheFormOfTheGpu) {
  for (const double unit : {1.0, 1e200, 1e300, 1e-200, 1e-300}) {
    SCOPED_TRACE(unit);
    const std::vector<double> values = {-unit, 0, unit, 4 * unit};
    const std::uint64_t shape[] = {values.size()};
    const Stats direct =
        ComputeSums({layout::Dtype::kFloat64, shape, std::as_bytes(std::span(values))});
    const Stats passed = FromDevice(ToDevice(direct));
    EXPECT_EQ(passed.min, direct.min);
    EXPECT_EQ(passed.max, direct.max);
    EXPECT_EQ(passed.mean, direct.mean);
    EXPECT_EQ(passed.l1, direct.l1);
    EXPECT_EQ(passed.hash, direct.hash);
    EXPECT_NEAR(passed.std / direct.std, 1, 1e-14);
    EXPECT_NEAR(passed.l2 / direct.l2, 1, 1e-14);
    EXPECT_NEAR(passed.rms / direct.rms, 1, 1e-14);
  }
}

TEST(Stats, EmptyTensorHasNoExtent) {
  const Stats stats = ComputeStats(F32({}).view());
  EXPECT_EQ(stats.count, 0u);
  EXPECT_TRUE(std::isnan(stats.min));
  EXPECT_TRUE(std::isnan(stats.mean));
  EXPECT_TRUE(std::isnan(stats.rms));
  EXPECT_EQ(stats.l1, 0);
  EXPECT_FALSE(stats.has_nonfinite);
  EXPECT_THAT(stats.histogram, Each(0u));
}

TEST(Stats, NonfiniteIsCountedAndLeftOut) {
  const Stats stats = ComputeStats(F32({2, kInf, kNan, -kInf, 4, -kNan}).view());
  EXPECT_EQ(stats.nan, 2u);
  EXPECT_EQ(stats.pos_inf, 1u);
  EXPECT_EQ(stats.neg_inf, 1u);
  EXPECT_EQ(stats.min, 2);
  EXPECT_EQ(stats.max, 4);
  EXPECT_EQ(stats.mean, 3);
  EXPECT_EQ(stats.std, 1);
  EXPECT_DOUBLE_EQ(stats.rms, std::sqrt((4.0 + 16.0) / 2));
  EXPECT_TRUE(stats.has_nonfinite);
  EXPECT_EQ(stats.first_nonfinite, 1u);
  EXPECT_EQ(stats.first_nonfinite_value, kInf);
  EXPECT_THAT(stats.histogram, ElementsAre(1, 0, 0, 0, 0, 0, 0, 1));
}

TEST(Stats, AllNanHasNoExtent) {
  for (const auto& tensor :
       {F32(std::vector<float>(5000, kNan)), F16Bits(std::vector<std::uint16_t>(5000, 0xfe00)),
        F64(std::vector<double>(5000, std::nan("")))}) {
    const Stats stats = ComputeStats(tensor.view());
    EXPECT_EQ(stats.nan, 5000u);
    EXPECT_EQ(stats.finite(), 0u);
    EXPECT_TRUE(std::isnan(stats.max));
    EXPECT_TRUE(std::isnan(stats.first_nonfinite_value));
    EXPECT_THAT(stats.histogram, Each(0u));
  }
}

TEST(Stats, FirstNonfiniteIsFoundInEveryBlock) {
  for (const std::size_t at : {0u, 1u, 2047u, 2048u, 4999u}) {
    std::vector<float> values(5000, 1.0f);
    values[at] = kNan;
    values[4999] = kInf;
    const Stats stats = ComputeStats(F32(values).view());
    EXPECT_EQ(stats.first_nonfinite, at);
    EXPECT_EQ(stats.mean, 1.0);
    EXPECT_EQ(stats.std, 0.0);
  }
}

TEST(Stats, BlockOfNanBeforeTheNumbersDoesNotHideThem) {
  std::vector<double> values(2048, std::nan(""));
  values.push_back(-3);
  const Stats stats = ComputeStats(F64(values).view());
  EXPECT_EQ(stats.min, -3);
  EXPECT_EQ(stats.max, -3);
  EXPECT_EQ(stats.mean, -3);
}

TEST(Stats, SubnormalsAreThoseOfTheTensorsOwnType) {
  // The smallest and the largest subnormal, the smallest normal, zeros.
  const Stats half = ComputeStats(F16Bits({0x0001, 0x83ff, 0x0400, 0x8400, 0, 0x8000}).view());
  EXPECT_EQ(half.subnormal, 2u);
  EXPECT_EQ(half.zero, 2u);
  const Stats bfloat = ComputeStats(Bf16Bits({0x0001, 0x807f, 0x0080, 0x8080, 0, 0x8000}).view());
  EXPECT_EQ(bfloat.subnormal, 2u);
  EXPECT_EQ(bfloat.zero, 2u);
}

TEST(Stats, MeanAndDeviationSurviveALargeOffset) {
  std::vector<double> values;
  for (int i = 0; i < 10000; ++i) values.push_back(1e12 + (i % 2 == 0 ? 0.25 : -0.25));
  const Stats stats = ComputeStats(F64(values).view());
  EXPECT_EQ(stats.mean, 1e12);
  EXPECT_DOUBLE_EQ(stats.std, 0.25);
}

TEST(Stats, DoublesAtTheEndsOfTheRangeDoNotOverflow) {
  const Stats large = ComputeStats(F64(std::vector<double>(3000, 1e308)).view());
  EXPECT_EQ(large.mean, 1e308);
  EXPECT_EQ(large.std, 0);
  EXPECT_EQ(large.l2, kInf);  // truly out of range
  EXPECT_DOUBLE_EQ(large.rms, 1e308);
  const Stats both = ComputeStats(F64({1e308, -1e308}).view());
  EXPECT_EQ(both.mean, 0);
  EXPECT_DOUBLE_EQ(both.std, 1e308);
  EXPECT_DOUBLE_EQ(both.l2, std::sqrt(2.0) * 1e308);
  EXPECT_THAT(both.histogram, ElementsAre(1, 0, 0, 0, 0, 0, 0, 1));
  const Stats small = ComputeStats(F64({3e-200, -4e-200}).view());
  EXPECT_DOUBLE_EQ(small.l2, 5e-200);
  EXPECT_DOUBLE_EQ(small.std, 3.5e-200);
}

TEST(Stats, Int64IsRightAtTheEndsOfItsRange) {
  const Stats ends = ComputeStats(I64({kInt64Min, kInt64Max}).view());
  EXPECT_EQ(ends.min, -0x1p63);
  EXPECT_EQ(ends.max, 0x1p63);  // rounded
  EXPECT_DOUBLE_EQ(ends.std, 0x1p63);
  EXPECT_THAT(ends.histogram, ElementsAre(1, 0, 0, 0, 0, 0, 0, 1));
}

TEST(Stats, Int64NeighboursBeyondDoubleStayApart) {
  std::vector<std::int64_t> values(4000, kInt64Max);
  for (std::size_t i = 0; i < values.size(); i += 2) values[i] -= 7;
  const Stats stats = ComputeStats(I64(values).view());
  EXPECT_DOUBLE_EQ(stats.std, 3.5);
  EXPECT_THAT(stats.histogram, ElementsAre(2000, 0, 0, 0, 0, 0, 0, 2000));
}

TEST(Stats, BoolCountsAsZeroAndOne) {
  const auto tensor = Vector<std::uint8_t>(Dtype::kBool, {1, 0, 1, 1});
  const Stats stats = ComputeStats(tensor.view());
  EXPECT_EQ(stats.zero, 1u);
  EXPECT_EQ(stats.min, 0);
  EXPECT_EQ(stats.max, 1);
  EXPECT_EQ(stats.mean, 0.75);
}

TEST(Stats, SmallIntegersReachTheirEnds) {
  const Stats stats = ComputeStats(Vector<std::int8_t>(Dtype::kInt8, {-128, 127}).view());
  EXPECT_EQ(stats.min, -128);
  EXPECT_EQ(stats.max, 127);
  EXPECT_EQ(ComputeStats(Vector<std::uint8_t>(Dtype::kUint8, {255}).view()).max, 255);
}

TEST(Stats, NegativeZeroIsShownAsZero) {
  const Stats stats = ComputeStats(F32({-0.0f, -0.0f}).view());
  EXPECT_EQ(stats.zero, 2u);
  EXPECT_FALSE(std::signbit(stats.min));
}

TEST(Stats, Float8E4m3fnHasNoInfinity) {
  // 448, NaN, -NaN, smallest subnormal, -0.
  const auto stats = ComputeStats(
      Vector<std::uint8_t>(Dtype::kFloat8E4m3fn, {0x7e, 0x7f, 0xff, 0x01, 0x80}).view());
  EXPECT_EQ(stats.nan, 2u);
  EXPECT_EQ(stats.pos_inf + stats.neg_inf, 0u);
  EXPECT_EQ(stats.max, 448);
  EXPECT_EQ(stats.subnormal, 1u);
  EXPECT_EQ(stats.zero, 1u);
  EXPECT_EQ(stats.first_nonfinite, 1u);
}

TEST(Stats, TheOnlyNanOfFnuzTypesIsWhereMinusZeroWouldBe) {
  for (const Dtype dtype : {Dtype::kFloat8E4m3fnuz, Dtype::kFloat8E5m2fnuz}) {
    const Stats stats =
        ComputeStats(Vector<std::uint8_t>(dtype, {0x00, 0x01, 0x80, 0x7f, 0xff}).view());
    EXPECT_EQ(stats.nan, 1u);
    EXPECT_EQ(stats.pos_inf + stats.neg_inf, 0u);
    EXPECT_EQ(stats.zero, 1u);
    EXPECT_EQ(stats.subnormal, 1u);
    EXPECT_EQ(stats.first_nonfinite, 2u);
    EXPECT_EQ(stats.max, layout::FindDtype(dtype)->max_finite);
    EXPECT_EQ(stats.min, -stats.max);
  }
}

TEST(Stats, Float8E8m0fnuHasNoZeroAndNoSubnormals) {
  const Stats stats =
      ComputeStats(Vector<std::uint8_t>(Dtype::kFloat8E8m0fnu, {0x00, 0x7f, 0xff, 0xfe}).view());
  EXPECT_EQ(stats.nan, 1u);
  EXPECT_EQ(stats.zero + stats.subnormal, 0u);
  EXPECT_EQ(stats.min, 0x1p-127);
  EXPECT_EQ(stats.max, 0x1p127);
  EXPECT_EQ(stats.first_nonfinite, 2u);
}

TEST(Stats, OfFloat4AreOfTheTwoValuesInEachByte) {
  // 6, 0.5; -6, -0; 0, 1.
  const auto tensor = Vector<std::uint8_t>(Dtype::kFloat4E2m1fnX2, {0x17, 0x8f, 0x20});
  const Stats stats = ComputeStats(tensor.view());
  EXPECT_EQ(stats.count, 6u);
  EXPECT_EQ(stats.nonfinite(), 0u);
  EXPECT_EQ(stats.zero, 2u);
  EXPECT_EQ(stats.subnormal, 1u);
  EXPECT_EQ(stats.min, -6);
  EXPECT_EQ(stats.max, 6);
  EXPECT_EQ(stats.l1, 13.5);
  EXPECT_NEAR(stats.mean, 0.25, 2e-6);
  EXPECT_EQ(stats.hash, ComputeStats(F32({6, 0.5f, -6, -0.0f, 0, 1}).view()).hash);
  EXPECT_EQ(
      stats.ordered_hash,
      ComputeStats(Vector<std::uint8_t>(Dtype::kUint8, {0x17, 0x8f, 0x20}).view()).ordered_hash);
}

TEST(Stats, ElementsOfTheLargestMagnitudeAreCountedInTypesToQuantiseTo) {
  struct Case {
    Dtype dtype;
    std::vector<std::uint8_t> bits;
    std::uint64_t saturated;
  };
  for (const Case& one : {
           Case{Dtype::kInt8, {127, 0x80, 0x81, 126, 0x82, 0}, 3},
           Case{Dtype::kFloat8E4m3fn, {0x7e, 0xfe, 0x7f, 0x7d, 0xff}, 2},
           Case{Dtype::kFloat8E5m2, {0x7b, 0xfb, 0x7c, 0xfc, 0x7e, 0x7a}, 2},
           Case{Dtype::kFloat8E4m3fnuz, {0x7f, 0xff, 0x80, 0x7e}, 2},
           Case{Dtype::kFloat8E5m2fnuz, {0x7f, 0xff, 0x80, 0x7e}, 2},
           Case{Dtype::kFloat4E2m1fnX2, {0x77, 0xf6, 0x00}, 3},
           Case{Dtype::kInt8, {1, 2, 3}, 0},
       }) {
    const Stats stats = ComputeStats(Vector<std::uint8_t>(one.dtype, one.bits).view());
    EXPECT_TRUE(stats.has_saturated);
    EXPECT_EQ(stats.saturated, one.saturated) << layout::DtypeName(one.dtype);
    const Stats passed = FromDevice(ToDevice(stats));
    EXPECT_TRUE(passed.has_saturated);
    EXPECT_EQ(passed.saturated, one.saturated);
    EXPECT_EQ(passed.subnormal, stats.subnormal);
  }
  EXPECT_FALSE(ComputeStats(F32({1}).view()).has_saturated);
  EXPECT_FALSE(FromDevice(ToDevice(ComputeStats(F32({1}).view()))).has_saturated);
}

TEST(Stats, HashIsTheXorOfTheWidenedElements) {
  EXPECT_EQ(ComputeStats(F32({1, -1.5f, -0.0f, 3}).view()).hash, 0x4000000000000000u);
  EXPECT_EQ(ComputeStats(Vector<std::int8_t>(Dtype::kInt8, {1, -1, 0, 3}).view()).hash,
            0xfffffffffffffffdu);
  EXPECT_EQ(ComputeStats(Vector<std::uint8_t>(Dtype::kBool, {1, 0, 2}).view()).hash, 0u);
  EXPECT_EQ(ComputeStats(F64({}).view()).hash, 0u);
}

TEST(Histogram, BinsTakeTheirLowerEdge) {
  std::vector<float> values;
  for (int i = 0; i <= 8; ++i) values.push_back(static_cast<float>(i));
  EXPECT_THAT(ComputeStats(F32(values).view()).histogram, ElementsAre(1, 1, 1, 1, 1, 1, 1, 2));
}

TEST(Histogram, IntegersOfAnOddRangeAreNotRounded) {
  const auto tensor = Vector<std::int32_t>(Dtype::kInt32, {0, 1, 2, 3});
  // The edges are 0.375 apart.
  EXPECT_THAT(ComputeStats(tensor.view()).histogram, ElementsAre(1, 0, 1, 0, 0, 1, 0, 1));
}

TEST(Histogram, ZerosOfBothSignsShareABin) {
  const auto stats = ComputeStats(F32({-4, -0.0f, 0.0f, 4}).view());
  EXPECT_THAT(stats.histogram, ElementsAre(1, 0, 0, 0, 2, 0, 0, 1));
}

TEST(Histogram, ConstantFillsTheFirstBin) {
  EXPECT_THAT(ComputeStats(F32({3, 3, 3}).view()).histogram, ElementsAre(3, 0, 0, 0, 0, 0, 0, 0));
}

TEST(Histogram, AdjacentSubnormalsAreNotLost) {
  const auto stats = ComputeStats(F64({5e-324, 1e-323}).view());
  std::uint64_t total = 0;
  for (const std::uint64_t bin : stats.histogram) total += bin;
  EXPECT_EQ(total, 2u);
}

// Random bytes in one of four patterns: all magnitudes with NaN and Inf; ordinary numbers; many
// zeros and subnormals; one value with few others.
std::vector<std::uint8_t> PatternedBytes(const layout::DtypeInfo& info, std::uint64_t count,
                                         int pattern) {
  std::vector<std::uint8_t> bytes(count * info.bytes);
  std::uint32_t state = 12345u + static_cast<std::uint32_t>(pattern);
  for (auto& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  if (info.bytes == 8 && !info.is_floating && pattern != 0) {  // int64 of 40 bits, some of 60
    for (std::uint64_t i = 0; i < count; ++i) {
      const bool negative = (bytes[i * 8] & 1) != 0;
      bytes[i * 8 + 5] = bytes[i * 8 + 6] = bytes[i * 8 + 7] = negative ? 0xff : 0;
      if (pattern == 3 && i % 5000 == 4999) bytes[i * 8 + 7] = 8;
    }
  }
  if (!info.is_floating || pattern == 0) return bytes;
  const unsigned top = info.bytes == 1 ? 0x38 : 0x3f;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint8_t* element = &bytes[i * info.bytes];
    std::uint8_t& last = element[info.bytes - 1];
    if (pattern == 1) last = static_cast<std::uint8_t>((last & 0x83) | (top & 0x7c));
    if (pattern == 2 && i % 3 != 0) last &= 0x80;  // zeros of both signs, subnormals
    if (pattern == 2 && i % 3 == 1) std::fill(element, &last, std::uint8_t{0});
    if (pattern == 3 && i % 97 != 5) {
      std::fill(element, &last, std::uint8_t{0});
      last = static_cast<std::uint8_t>(top);
    }
  }
  return bytes;
}

// Every dtype against the plainest possible computation, over sizes around the block.
class StatsOfDtype : public ::testing::TestWithParam<layout::DtypeInfo> {};

TEST_P(StatsOfDtype, KernelsOfEveryCpuAgreeWithThePlainLoops) {
  const layout::DtypeInfo& info = GetParam();
  const bool narrow = info.is_floating && info.bytes <= 2;
  for (const int pattern : {0, 1, 2, 3}) {
    for (const std::uint64_t count : {3u, 64u, 1000u, 8191u, 40000u}) {
      std::vector<std::uint8_t> bytes = PatternedBytes(info, count, pattern);
      const TestTensor tensor(info.dtype, {count}, bytes);
      Stats plain;
      {
        const WithCpu cpu(Cpu::kPlain);
        plain = ComputeStats(tensor.view());
      }
      for (const Cpu cpu : AvailableCpus()) {
        const WithCpu chosen(cpu);
        const Stats stats = ComputeStats(tensor.view());
        SCOPED_TRACE(testing::Message() << "cpu " << static_cast<int>(cpu) << " pattern " << pattern
                                        << " count " << count);
        EXPECT_EQ(stats.nan, plain.nan);
        EXPECT_EQ(stats.pos_inf, plain.pos_inf);
        EXPECT_EQ(stats.neg_inf, plain.neg_inf);
        EXPECT_EQ(stats.zero, plain.zero);
        EXPECT_EQ(stats.subnormal, plain.subnormal);
        EXPECT_EQ(stats.hash, plain.hash);
        EXPECT_EQ(stats.histogram, plain.histogram);
        EXPECT_EQ(stats.has_nonfinite, plain.has_nonfinite);
        EXPECT_EQ(stats.first_nonfinite, plain.first_nonfinite);
        if (plain.finite() == 0) continue;
        EXPECT_EQ(stats.min, plain.min);
        EXPECT_EQ(stats.max, plain.max);
        const double close = narrow ? 2e-6 : 1e-12;
        EXPECT_NEAR(stats.mean, plain.mean, close * plain.abs_max);
        EXPECT_NEAR(stats.std, plain.std, close * plain.abs_max);
        EXPECT_TRUE(stats.l1 == plain.l1 || std::fabs(stats.l1 - plain.l1) <= close * plain.l1);
        EXPECT_TRUE(stats.l2 == plain.l2 || std::fabs(stats.l2 - plain.l2) <= close * plain.l2);
      }
    }
  }
}

TEST_P(StatsOfDtype, AgreesWithNaiveLoopsOnPatternedBits) {
  for (const std::uint64_t count : {1u, 7u, 8u, 9u, 2047u, 2048u, 2049u, 5000u}) {
    std::vector<std::uint8_t> bytes(count * GetParam().bytes);
    std::uint32_t state = 12345;
    for (auto& byte : bytes) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<std::uint8_t>(state >> 24);
    }
    const TestTensor tensor(GetParam().dtype, {count}, bytes);
    const Stats stats = ComputeStats(tensor.view());
    std::optional<Float4Values> values;
    if (layout::ValuesPerElement(GetParam().dtype) == 2) values.emplace(tensor.view());
    const TensorView view = values ? values->view() : tensor.view();
    std::uint64_t finite = 0, zero = 0, histogram = 0;
    double low = kInf, high = -kInf;
    long double sum = 0;
    for (std::uint64_t i = 0; i < view.count(); ++i) {
      const double value = ElementAsDouble(view, i);
      if (!std::isfinite(value)) continue;
      ++finite;
      zero += value == 0;
      low = std::min(low, value);
      high = std::max(high, value);
      sum += value;
    }
    for (const std::uint64_t bin : stats.histogram) histogram += bin;
    EXPECT_EQ(stats.finite(), finite);
    EXPECT_EQ(stats.zero, zero);
    EXPECT_EQ(stats.min, low);
    EXPECT_EQ(stats.max, high);
    EXPECT_EQ(histogram, finite);
    const auto mean = static_cast<double>(sum / static_cast<long double>(finite));
    const bool narrow = GetParam().is_floating && GetParam().bytes <= 2;
    EXPECT_NEAR(stats.mean, mean, (narrow ? 2e-6 : 1e-13) * stats.abs_max) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(All, StatsOfDtype, ::testing::ValuesIn(layout::kDtypes),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cgdebug::numerics
