#include "daemon/core/numerics/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "daemon/core/numerics/device_stats.h"
#include "tests/unit/numerics/numerics_test_util.h"

namespace cgdebug::numerics {
namespace {

using layout::Dtype;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Line(const TestTensor& tensor) {
  const TensorView view = tensor.view();
  return FormatTensorLine(view.dtype, view.shape, ComputeStats(view));
}

TEST(FormatTensorLine, SaysWhatMatters) {
  EXPECT_EQ(Line(F32({-1, 0, 1, 4})), "f32[4]  n=4 x∈[-1 |██ █   █| 4] μ=1 σ=1.87");
}

TEST(FormatTensorLine, OneElementIsItsValue) {
  EXPECT_EQ(Line(TestTensor(Dtype::kFloat32, {}, std::vector<float>{3.25})), "f32[]  = 3.25");
  EXPECT_EQ(Line(TestTensor(Dtype::kInt32, {1, 1}, std::vector<std::int32_t>{-7})),
            "i32[1,1]  = -7");
  EXPECT_EQ(Line(Vector<std::uint8_t>(Dtype::kBool, {1})), "b8[1]  = True");
  EXPECT_EQ(Line(F32({kNan})), "f32[1]  = nan");
  EXPECT_EQ(Line(F32({-kInf})), "f32[1]  = -inf");
}

TEST(FormatTensorLine, EmptyConstantAndZeros) {
  EXPECT_EQ(Line(TestTensor(Dtype::kFloat16, {0, 4}, std::vector<std::uint16_t>{})),
            "f16[0,4]  empty");
  EXPECT_EQ(Line(F32({2.5, 2.5})), "f32[2]  n=2 all = 2.5");
  EXPECT_EQ(Line(F32({0, -0.0f})), "f32[2]  n=2 all zeros");
}

TEST(FormatTensorLine, NonfiniteIsLoudAndSaysWhere) {
  TestTensor tensor(Dtype::kFloat32, {2, 3}, std::vector<float>{1, 2, 3, 4, kInf, kInf});
  EXPECT_EQ(Line(tensor), "f32[2,3]  n=6 2 +Inf! 0 NaN  first at [1, 1]  rest∈[1, 4] μ=2.5 σ=1.12");
  EXPECT_EQ(Line(F32({kNan, 1})), "f32[2]  n=2 1 NaN! 0 Inf  first at [0]  rest = 1");
  EXPECT_EQ(Line(F32({-kInf, kNan, kInf})), "f32[3]  n=3 1 NaN! 1 +Inf! 1 -Inf!  first at [0]");
  EXPECT_EQ(Line(F32({kNan, kNan})), "f32[2]  n=2 all NaN! 0 Inf");
}

TEST(FormatTensorLine, NearOverflowIsOfTheTensorsOwnType) {
  // 0x78a4 is 38016 = 58.04 % of 65504.
  EXPECT_THAT(Line(F16Bits({0x78a4, 0})), EndsWith("NEAR-OVERFLOW 58% of max"));
  EXPECT_THAT(Line(F32({38016, 0})), Not(HasSubstr("NEAR-OVERFLOW")));
  EXPECT_THAT(Line(F16Bits({0xfbff, 0xfbff})), EndsWith("all = -65504 NEAR-OVERFLOW 100% of max"));
}

TEST(FormatTensorLine, ManySaturatedElementsAreNamed) {
  EXPECT_THAT(Line(Vector<std::uint8_t>(Dtype::kInt8, {0x7f, 0x80, 0, 1})),
              EndsWith("SATURATED 50%"));
  EXPECT_THAT(Line(Vector<std::uint8_t>(Dtype::kFloat4E2m1fnX2, {0x70, 0x11})),
              EndsWith("SATURATED 25%"));
  EXPECT_THAT(Line(Vector<std::uint8_t>(Dtype::kInt8, {0x7e, 0x82, 0, 1})),
              Not(HasSubstr("SATURATED")));
}

TEST(FormatTensorLine, ManySubnormalsAreNamed) {
  EXPECT_THAT(Line(F16Bits({0x0001, 0x3c00, 0x3c00, 0x3c00})), EndsWith("SUBNORMAL 25%"));
}

TEST(FormatTensorLine, EndsStayApart) {
  EXPECT_THAT(Line(F64({1.00001, 1.00002})), HasSubstr("x∈[1.00001 |"));
  EXPECT_THAT(Line(Vector<std::int32_t>(Dtype::kInt32, {100000, 100001})),
              HasSubstr("x∈[100000 |█      █| 100001]"));
}

TEST(FormatTensorLine, BoolSaysHowManyAreTrue) {
  EXPECT_EQ(Line(Vector<std::uint8_t>(Dtype::kBool, {1, 0, 1, 0, 0, 0, 1, 0})),
            "b8[8]  n=8 3 true (37.5%)");
}

TEST(FormatTensorLine, IntegersBeyondDoubleAreNotCalledConstant) {
  const std::int64_t large = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(Line(I64({large, large - 1})), HasSubstr("x∈[9.22e+18 |"));
}

TEST(FormatTensorLine, WithoutHistogramTheEndsRemain) {
  Stats stats = ComputeStats(F32({1, 2, 6}).view());
  stats.histogram = {};
  const std::uint64_t shape[] = {3};
  EXPECT_EQ(FormatTensorLine(Dtype::kFloat32, shape, stats), "f32[3]  n=3 x∈[1, 6] μ=3 σ=2.16");
}

TEST(FormatTensorLine, StatisticsThatNobodyComputesEndIt) {
  Stats stats = ComputeStats(F32({1, 2, 6}).view());
  stats.min = stats.max = kNan;
  const std::uint64_t shape[] = {3};
  EXPECT_THAT(FormatTensorLine(Dtype::kFloat32, shape, stats), HasSubstr("x∈[nan "));
}

TEST(FormatTensorLine, ColourMarksTroubleOnly) {
  const auto line = [](const TestTensor& tensor) {
    const TensorView view = tensor.view();
    return FormatTensorLine(view.dtype, view.shape, ComputeStats(view), {.colour = true});
  };
  EXPECT_THAT(line(F32({kNan, 1})), HasSubstr("\033[1;31m1 NaN!\033[0m 0 Inf"));
  EXPECT_THAT(line(F16Bits({0x7bff, 0})), HasSubstr("\033[33mNEAR-OVERFLOW 100% of max\033[0m"));
  EXPECT_THAT(line(F32({1, 2})), Not(HasSubstr("\033")));
}

TEST(FormatTensorLine, TypeIsPadded) {
  const TestTensor tensor = F32({3});
  const TensorView view = tensor.view();
  EXPECT_EQ(FormatTensorLine(view.dtype, view.shape, ComputeStats(view), {.type_width = 8}),
            "f32[1]    = 3");
}

TestTensor Iota(std::vector<std::uint64_t> shape) {
  std::vector<std::int32_t> values(ElementCount(shape).value());
  std::iota(values.begin(), values.end(), 0);
  return TestTensor(Dtype::kInt32, std::move(shape), values);
}

TEST(FormatValues, SmallTensorIsShownWhole) {
  EXPECT_EQ(FormatValues(Iota({2, 3}).view(), 16), "[[0, 1, 2], [3, 4, 5]]");
  EXPECT_EQ(FormatValues(Iota({}).view(), 16), "0");
  EXPECT_EQ(FormatValues(Iota({3}).view(), 3), "[0, 1, 2]");
}

TEST(FormatValues, LargeTensorShowsItsEdges) {
  EXPECT_EQ(FormatValues(Iota({100}).view(), 6), "[0, 1, 2, ..., 97, 98, 99]");
  EXPECT_EQ(FormatValues(Iota({100}).view(), 1), "[0, ...]");
  EXPECT_EQ(FormatValues(Iota({10, 10}).view(), 8),
            "[[0, 1, ..., 8, 9], ..., [90, 91, ..., 98, 99]]");
  EXPECT_EQ(FormatValues(Iota({3, 100}).view(), 2), "[[0, ..., 99], ...]");
}

TEST(FormatValues, NeverShowsMoreThanAsked) {
  for (const std::size_t max_items : {1u, 2u, 3u, 7u, 16u, 100u, 2000u}) {
    for (const auto& shape : std::vector<std::vector<std::uint64_t>>{
             {1000}, {10, 100}, {3, 5, 7}, {2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, {1, 1, 9}}) {
      const std::string text = FormatValues(Iota(shape).view(), max_items);
      std::size_t numbers = 0;
      bool in_number = false;
      for (const char c : text) {
        const bool digit = c >= '0' && c <= '9';
        numbers += digit && !in_number;
        in_number = digit;
      }
      const std::size_t count = ElementCount(shape).value();
      EXPECT_LE(numbers, max_items) << text;
      EXPECT_GE(numbers, std::min<std::size_t>(count, 1)) << text;
      EXPECT_TRUE(count > max_items || numbers == count) << text;
    }
  }
}

TEST(FormatValues, NothingToShow) {
  EXPECT_EQ(FormatValues(Iota({5}).view(), 0), "[...]");
  EXPECT_EQ(FormatValues(Iota({0}).view(), 8), "[]");
  EXPECT_EQ(FormatValues(Iota({2, 0}).view(), 8), "[[], []]");
}

TEST(FormatValues, EveryDtypeIsRight) {
  EXPECT_EQ(FormatValues(Vector<std::uint8_t>(Dtype::kBool, {0, 1}).view(), 8), "[False, True]");
  EXPECT_EQ(FormatValues(Vector<std::uint8_t>(Dtype::kUint8, {255}).view(), 8), "[255]");
  EXPECT_EQ(FormatValues(Vector<std::int8_t>(Dtype::kInt8, {-128}).view(), 8), "[-128]");
  EXPECT_EQ(FormatValues(Vector<std::int16_t>(Dtype::kInt16, {-32768}).view(), 8), "[-32768]");
  EXPECT_EQ(FormatValues(I64({std::numeric_limits<std::int64_t>::min()}).view(), 8),
            "[-9223372036854775808]");
  EXPECT_EQ(FormatValues(F16Bits({0x3555, 0x7c00, 0xfe00}).view(), 8), "[0.3333, inf, nan]");
  EXPECT_EQ(FormatValues(Bf16Bits({0x3fc0, 0xff80}).view(), 8), "[1.5, -inf]");
  EXPECT_EQ(FormatValues(F32({1e-8f, 123456}).view(), 8), "[1e-08, 1.235e+05]");
  EXPECT_EQ(FormatValues(F64({0.1, 1}).view(), 8, 0), "[0.1, 1.0]");
}

TEST(FormatRepr, ReadsAsInPython) {
  EXPECT_EQ(FormatRepr(1), "1.0");
  EXPECT_EQ(FormatRepr(-0.0), "-0.0");
  EXPECT_EQ(FormatRepr(1e-5), "1e-05");
  EXPECT_EQ(FormatRepr(0.0001), "0.0001");
  EXPECT_EQ(FormatRepr(1e15), "1000000000000000.0");
  EXPECT_EQ(FormatRepr(1e16), "1e+16");
  EXPECT_EQ(FormatRepr(1.5e300), "1.5e+300");
  EXPECT_EQ(FormatRepr(-kInf), "-inf");
  EXPECT_EQ(FormatRepr(-kNan), "nan");
}

TEST(FormatCount, FoldsFromTenThousandOn) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(9999), "9999");
  EXPECT_EQ(FormatCount(16777216), "16.8M");
  EXPECT_EQ(FormatCount(45088768), "45.1M");
  EXPECT_EQ(FormatCount(131072), "131k");
  EXPECT_EQ(FormatCount(999999), "1M");
  EXPECT_EQ(FormatCount(18446744073709551615u), "18.4E");
}

TEST(FormatBytes, UsesBinaryUnits) {
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(84u << 20), "84 MiB");
  EXPECT_EQ(FormatBytes(1000u << 20), "1000 MiB");
  EXPECT_EQ(FormatBytes(18446744073709551615u), "16 EiB");
}

TEST(FormatIndex, UnravelsLikeTorch) {
  const std::uint64_t shape[] = {8, 512, 11008}, flat[] = {5};
  EXPECT_EQ(FormatIndex((2ull * 512 + 17) * 11008 + 903, shape), "[2, 17, 903]");
  EXPECT_EQ(FormatIndexTuple((7ull * 512 + 511) * 11008 + 40, shape), "(7, 511, 40)");
  EXPECT_EQ(FormatIndexTuple(3, flat), "(3,)");
  EXPECT_EQ(FormatIndexTuple(0, {}), "()");
  EXPECT_EQ(FormatIndex(0, {}), "[]");
  EXPECT_EQ(FormatShape(shape), "[8,512,11008]");
}

TEST(DeviceStats, MomentsAreThoseOfTheTensorAndThereIsNoHistogram) {
  layout::DeviceStats device = {};  // of 10, 11, 12, +Inf, around 10
  device.count = 4;
  device.pos_inf = 1;
  device.first_nonfinite = 3;
  device.flags = layout::kStatsHasNonfinite | std::uint64_t{1} << layout::kStatsFirstKindShift;
  device.min = 10;
  device.max = 12;
  device.shift = 10;
  device.sum = 3;
  device.sum_squares = 5;
  device.l1 = 33;
  device.l2_squared = 365;
  const Stats stats = FromDevice(device);
  EXPECT_DOUBLE_EQ(stats.mean, 11);
  EXPECT_DOUBLE_EQ(stats.std, std::sqrt(2.0 / 3));
  EXPECT_DOUBLE_EQ(stats.l2, std::sqrt(365.0));
  EXPECT_DOUBLE_EQ(stats.rms, std::sqrt(365.0 / 3));
  EXPECT_EQ(stats.abs_max, 12);
  EXPECT_EQ(stats.first_nonfinite_value, std::numeric_limits<double>::infinity());
  const std::vector<std::uint64_t> shape = {4};
  const std::string line = FormatTensorLine(layout::Dtype::kFloat32, shape, stats);
  EXPECT_THAT(line, ::testing::HasSubstr("1 +Inf!"));
  EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr("|")));
}

TEST(DeviceStats, WithoutFiniteElementsExtentAndMomentsAreNan) {
  layout::DeviceStats device = {};
  device.count = device.nan = 2;
  device.min = std::numeric_limits<double>::infinity();
  device.max = -device.min;
  device.flags = layout::kStatsHasNonfinite;
  const Stats stats = FromDevice(device);
  EXPECT_TRUE(std::isnan(stats.min));
  EXPECT_TRUE(std::isnan(stats.mean));
  EXPECT_TRUE(std::isnan(stats.rms));
  EXPECT_TRUE(std::isnan(stats.first_nonfinite_value));
}

}  // namespace
}  // namespace cgdebug::numerics
