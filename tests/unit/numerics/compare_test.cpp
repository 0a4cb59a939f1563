#include "daemon/core/numerics/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "tests/unit/numerics/numerics_test_util.h"

namespace cgdebug::numerics {
namespace {

using layout::Dtype;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();

CompareResult Outcome(const TestTensor& actual, const TestTensor& expected,
                      const CompareOptions& options = {}) {
  return Compare(actual.view(), expected.view(), options).value();
}

// The expected texts in this file are what torch.testing.assert_close of torch 2.11 says.

TEST(Compare, MessageIsThatOfTorch) {
  const TestTensor actual(Dtype::kFloat32, {2, 2}, std::vector<float>{1, 2, 3, 4});
  const TestTensor expected(Dtype::kFloat32, {2, 2}, std::vector<float>{1, 2.5, 3, 0.5});
  const CompareResult result = Outcome(actual, expected, {.rtol = 1.3e-6, .atol = 1e-5});
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.compared, 4u);
  EXPECT_EQ(result.mismatched, 2u);
  EXPECT_EQ(result.first_mismatch, 1u);
  EXPECT_EQ(result.max_abs.value, 3.5);
  EXPECT_EQ(result.max_abs.index, 3u);
  EXPECT_EQ(result.max_abs.allowed, 1e-5);
  EXPECT_EQ(result.max_rel.value, 7);
  EXPECT_EQ(result.text.Whole(),
            "Tensor-likes are not close!\n\n"
            "Mismatched elements: 2 / 4 (50.0%)\n"
            "Greatest absolute difference: 3.5 at index (1, 1) (up to 1e-05 allowed)\n"
            "Greatest relative difference: 7.0 at index (1, 1) (up to 1.3e-06 allowed)");
}

TEST(Compare, Float32DifferencesArePrintedAsTorchPrintsThem) {
  const CompareResult result = Outcome(F32({1.5f, 2}), F32({0.1f, 2}), {.rtol = 0, .atol = 0});
  EXPECT_EQ(result.text.Whole(),
            "Tensor-likes are not equal!\n\n"
            "Mismatched elements: 1 / 2 (50.0%)\n"
            "Greatest absolute difference: 1.399999976158142 at index (0,)\n"
            "Greatest relative difference: 14.0 at index (0,)");
}

TEST(Compare, EqualHasNoMessage) {
  const CompareResult result = Outcome(F32({1, -0.0f}), F32({1, 0}), {.rtol = 0, .atol = 0});
  EXPECT_TRUE(result.ok);
  EXPECT_EQ(result.compared, 2u);
  EXPECT_EQ(result.text.Whole(), "");
}

TEST(Compare, EmptyTensorsAreClose) { EXPECT_TRUE(Outcome(F32({}), F32({})).ok); }

TEST(Compare, ToleranceIsAbsolutePlusRelativeToExpected) {
  const CompareOptions options{.rtol = 0.5, .atol = 1};
  EXPECT_TRUE(Outcome(F64({13}), F64({8}), options).ok);
  EXPECT_FALSE(Outcome(F64({13.5}), F64({8}), options).ok);
  EXPECT_TRUE(Outcome(F64({8}), F64({13.5}), options).ok);
}

TEST(Compare, NanIsCloseToNothing) {
  const CompareResult result = Outcome(F32({1, kNan, 9}), F32({1, 2, 3}), {.rtol = 1, .atol = 0});
  EXPECT_EQ(result.mismatched, 2u);
  EXPECT_THAT(
      result.text.Whole(),
      AllOf(HasSubstr("Greatest absolute difference: nan at index (1,) (up to 0.0 allowed)"),
            HasSubstr("Greatest relative difference: nan at index (1,) (up to 1.0 allowed)")));
}

TEST(Compare, NanInEqualBitsIsFoundUnlessAllowed) {
  for (const std::size_t at : {0u, 2047u, 2048u, 2999u}) {
    std::vector<float> values(3000, 1.0f);
    values[at] = kNan;
    EXPECT_EQ(Outcome(F32(values), F32(values)).first_mismatch, at);
    EXPECT_TRUE(Outcome(F32(values), F32(values), {.equal_nan = true}).ok);
  }
  EXPECT_EQ(Outcome(F16Bits({0xfe00}), F16Bits({0xfe00})).mismatched, 1u);
  EXPECT_TRUE(Outcome(F16Bits({0xfe00}), F16Bits({0x7e01}), {.equal_nan = true}).ok);
  EXPECT_FALSE(Outcome(F32({kNan}), F32({1}), {.equal_nan = true}).ok);
}

TEST(Compare, InfinityIsCloseToItselfOnly) {
  EXPECT_TRUE(Outcome(F32({kInf, -kInf}), F32({kInf, -kInf})).ok);
  EXPECT_FALSE(Outcome(F32({kInf}), F32({-kInf}), {.rtol = 1, .atol = 1}).ok);
  const CompareResult result = Outcome(F32({1, 2, 3}), F32({1, kInf, 0}), {.rtol = 1, .atol = 1});
  EXPECT_EQ(result.mismatched, 2u);
  EXPECT_THAT(result.text.Whole(), AllOf(HasSubstr("absolute difference: inf at index (1,)"),
                                         HasSubstr("relative difference: nan at index (1,)")));
}

TEST(Compare, ZeroExpectedHasInfiniteRelativeDifference) {
  EXPECT_THAT(Outcome(F32({1}), F32({0})).text.Whole(),
              HasSubstr("relative difference: inf at index (0,)"));
}

TEST(Compare, DifferenceBeyondTheRangeIsNeverClose) {
  EXPECT_FALSE(Outcome(F64({1.7e308}), F64({-1.7e308}), {.rtol = 1e9, .atol = 0}).ok);
}

TEST(Compare, ScalarsSpeakOfThemselves) {
  const TestTensor actual(Dtype::kFloat32, {}, std::vector<float>{1});
  const TestTensor expected(Dtype::kFloat32, {}, std::vector<float>{2.5});
  EXPECT_EQ(Outcome(actual, expected, {.rtol = 1.3e-6, .atol = 1e-5}).text.Whole(),
            "Scalars are not close!\n\n"
            "Expected 2.5 but got 1.0.\n"
            "Absolute difference: 1.5 (up to 1e-05 allowed)\n"
            "Relative difference: 0.6 (up to 1.3e-06 allowed)");
  const TestTensor yes(Dtype::kBool, {}, std::vector<std::uint8_t>{1});
  const TestTensor no(Dtype::kBool, {}, std::vector<std::uint8_t>{0});
  EXPECT_EQ(Outcome(yes, no, {.rtol = 0, .atol = 0}).text.Whole(),
            "Scalars are not equal!\n\n"
            "Expected False but got True.\n"
            "Absolute difference: 1\n"
            "Relative difference: inf");
}

TEST(Compare, Int64IsExactWhereDoubleIsNot) {
  const std::int64_t large = (1LL << 53) + 1;
  EXPECT_FALSE(Outcome(I64({large}), I64({large - 1}), {.rtol = 0, .atol = 0}).ok);
  EXPECT_TRUE(Outcome(I64({large}), I64({large - 1}), {.rtol = 0, .atol = 1}).ok);
  EXPECT_FALSE(Outcome(I64({kInt64Max}), I64({kInt64Max - 2}), {.rtol = 0, .atol = 1}).ok);
}

// What a GPU writes about the same tensors.
layout::SlotFailure FailureOf(const TensorView& actual, const TensorView& expected,
                              const CompareResult& result) {
  const std::size_t bytes = layout::DtypeBytes(actual.dtype);
  layout::SlotFailure failure = {};
  failure.mismatched = result.mismatched;
  failure.first = result.first_mismatch;
  std::memcpy(&failure.actual, actual.data.data() + failure.first * bytes, bytes);
  std::memcpy(&failure.expected, expected.data.data() + failure.first * bytes, bytes);
  failure.max_abs = std::bit_cast<std::uint64_t>(result.max_abs.value);
  failure.max_abs_index = result.max_abs.index;
  failure.max_rel = std::bit_cast<std::uint64_t>(result.max_rel.value);
  failure.max_rel_index = result.max_rel.index;
  return failure;
}

TEST(Compare, AFailureOnTheDeviceHasTheSameWords) {
  const auto check = [](const TestTensor& actual, const TestTensor& expected,
                        const CompareOptions& options) {
    const CompareResult result = Outcome(actual, expected, options);
    ASSERT_FALSE(result.ok);
    const std::vector<std::uint64_t> shape(actual.view().shape.begin(), actual.view().shape.end());
    const auto failure = FailureOf(actual.view(), expected.view(), result);
    EXPECT_EQ(FailureText(actual.view().dtype, shape, options, failure)->Whole(),
              result.text.Whole());
  };
  const TestTensor a(Dtype::kFloat32, {2, 3}, std::vector<float>{1, 2, 3, 4, 5.5, 6});
  const TestTensor b(Dtype::kFloat32, {2, 3}, std::vector<float>{1, 2, 3, 4.25, 5, 0});
  check(a, b, {});
  check(a, b, {.bitwise = true});
  check(TestTensor(Dtype::kUint8, {3}, std::vector<std::uint8_t>{0, 1, 200}),
        TestTensor(Dtype::kUint8, {3}, std::vector<std::uint8_t>{0, 2, 3}), {.rtol = 0, .atol = 0});
  check(TestTensor(Dtype::kFloat32, {}, std::vector<float>{1}),
        TestTensor(Dtype::kFloat32, {}, std::vector<float>{2}), {});
}

TEST(Compare, Int64IsAllowedWhatADoubleHolds) {
  // 2^53 + 1 is not a double: the bound is rounded, the difference is not.
  const std::int64_t base = 1LL << 53;
  EXPECT_TRUE(Outcome(I64({2 * base}), I64({base}), {.rtol = 1, .atol = 0}).ok);
  EXPECT_FALSE(Outcome(I64({2 * base + 1}), I64({base}), {.rtol = 1, .atol = 0}).ok);
  EXPECT_FALSE(Outcome(I64({2 * base + 1}), I64({base}), {.rtol = 1, .atol = 1}).ok);
  EXPECT_TRUE(Outcome(I64({2 * base + 2}), I64({base}), {.rtol = 1, .atol = 2}).ok);
  EXPECT_TRUE(Outcome(I64({kInt64Max}), I64({kInt64Min}), {.rtol = 3, .atol = 0}).ok);
}

TEST(Compare, Int64DifferenceDoesNotOverflow) {
  const CompareResult result =
      Outcome(I64({kInt64Min, 0}), I64({kInt64Max, 0}), {.rtol = 0, .atol = 0});
  EXPECT_THAT(result.text.Whole(),
              HasSubstr("absolute difference: 18446744073709551615 at index (0,)"));
  EXPECT_FALSE(Outcome(I64({0}), I64({kInt64Min}), {.rtol = 0.5, .atol = 0}).ok);
  EXPECT_TRUE(Outcome(I64({0}), I64({kInt64Min}), {.rtol = 1, .atol = 0}).ok);
}

TEST(Compare, SmallIntegersPrintAsIntegers) {
  const auto actual = Vector<std::uint8_t>(Dtype::kUint8, {0, 2});
  const auto expected = Vector<std::uint8_t>(Dtype::kUint8, {255, 4});
  EXPECT_EQ(Outcome(actual, expected, {.rtol = 0, .atol = 0}).text.Whole(),
            "Tensor-likes are not equal!\n\n"
            "Mismatched elements: 2 / 2 (100.0%)\n"
            "Greatest absolute difference: 255 at index (0,)\n"
            "Greatest relative difference: 1.0 at index (0,)");
}

TEST(Compare, BoolIsZeroAndOne) {
  const auto actual = Vector<std::uint8_t>(Dtype::kBool, {1, 2, 0});
  const auto expected = Vector<std::uint8_t>(Dtype::kBool, {1, 1, 1});
  const CompareResult result = Outcome(actual, expected, {.rtol = 0, .atol = 0});
  EXPECT_EQ(result.mismatched, 1u);
  EXPECT_EQ(result.first_mismatch, 2u);
}

TEST(Compare, HalfDifferencesAreExact) {
  // 60000 and -60000, whose difference does not fit a half.
  const CompareResult result = Outcome(F16Bits({0x7b53}), F16Bits({0xfb53}));
  EXPECT_EQ(result.max_abs.value, 120000);
}

TEST(Compare, GreatestIsTheFirstOfEquals) {
  const CompareResult result = Outcome(F32({0, 5, 5}), F32({0, 4, 4}));
  EXPECT_EQ(result.max_abs.index, 1u);
  EXPECT_EQ(result.max_rel.index, 1u);
}

TEST(Compare, MatchingElementsDoNotCountAsGreatest) {
  // 100 differs by more, but within its tolerance.
  const CompareResult result = Outcome(F64({101, 1.5}), F64({100, 1}), {.rtol = 0.1, .atol = 0});
  EXPECT_EQ(result.max_abs.index, 1u);
  EXPECT_EQ(result.max_abs.value, 0.5);
}

TEST(Compare, MismatchesOfEveryBlockAreCounted) {
  std::vector<std::int32_t> actual(10000, 7), expected(10000, 7);
  for (const std::size_t at : {0u, 2047u, 2048u, 9999u}) actual[at] = 8;
  const auto result = Outcome(Vector(Dtype::kInt32, actual), Vector(Dtype::kInt32, expected),
                              {.rtol = 0, .atol = 0});
  EXPECT_EQ(result.mismatched, 4u);
  EXPECT_EQ(result.compared, 10000u);
  EXPECT_THAT(result.text.Whole(), HasSubstr("Mismatched elements: 4 / 10000 (0.0%)"));
}

TEST(Compare, BitwiseSeesWhatValuesHide) {
  const CompareOptions bitwise{.bitwise = true};
  EXPECT_TRUE(Outcome(F32({kNan, kInf}), F32({kNan, kInf}), bitwise).ok);
  const CompareResult result =
      Outcome(F16Bits({0x3c00, 0x8000}), F16Bits({0x3c00, 0x0000}), bitwise);
  EXPECT_EQ(result.mismatched, 1u);
  EXPECT_EQ(result.text.Whole(),
            "Tensor-likes are not bitwise equal!\n\n"
            "Mismatched elements: 1 / 2 (50.0%)\n"
            "The first mismatched element is at index (1,): -0.0 (0x8000), expected 0.0 (0x0000)\n"
            "Greatest absolute difference: 0.0 at index (1,)");
  EXPECT_FALSE(Outcome(F32({1}), F32({1.0000001f}), {.rtol = 1, .bitwise = true}).ok);
}

TEST(Compare, AnotherDtypeOrShapeIsAnErrorWithBoth) {
  const auto dtype = Compare(F32({1}).view(), F64({1}).view(), {});
  ASSERT_FALSE(dtype.ok());
  EXPECT_EQ(dtype.error().message,
            "cannot compare float32[1] with the expected float64[1]: the dtype differs");
  const auto shape = Compare(F32({1, 2}).view(), F32({1}).view(), {});
  ASSERT_FALSE(shape.ok());
  EXPECT_EQ(shape.error().message,
            "cannot compare float32[2] with the expected float32[1]: the shape differs");
}

TEST(Compare, AnInvalidToleranceIsAnError) {
  EXPECT_FALSE(Compare(F32({1}).view(), F32({1}).view(), {.rtol = -1}).ok());
  EXPECT_FALSE(Compare(F32({1}).view(), F32({1}).view(), {.atol = kNan}).ok());
  EXPECT_FALSE(Compare(F32({1}).view(), F32({1}).view(), {.atol = kInf}).ok());
}

TEST(Compare, DefaultTolerancesAreThoseOfAssertClose) {
  EXPECT_EQ(DefaultTolerances(Dtype::kBfloat16).rtol, 1.6e-2);
  EXPECT_EQ(DefaultTolerances(Dtype::kFloat32).rtol, 1.3e-6);
  EXPECT_EQ(DefaultTolerances(Dtype::kInt64).atol, 0);
}

TEST(Ulp, BinsAreDocumentedPowersOfTwo) {
  const std::uint64_t distances[] = {0, 1, 2, 3, 4, 5, 8, 9, 16, ~std::uint64_t{0}};
  const std::size_t bins[] = {0, 1, 2, 3, 3, 4, 4, 5, 5, 65};
  for (std::size_t i = 0; i < std::size(bins); ++i) {
    EXPECT_EQ(UlpBin(distances[i]), bins[i]);
    EXPECT_GE(UlpBinEnd(bins[i]), distances[i]);
    if (bins[i] > 0) {
      EXPECT_LT(UlpBinEnd(bins[i] - 1), distances[i]);
    }
  }
}

TEST(Ulp, CountsStepsOfTheOwnGrid) {
  const auto result = Compare(Bf16Bits({0x3f80, 0x3f81, 0x8001, 0x8000, 0x7f80, 0x3f90}).view(),
                              Bf16Bits({0x3f80, 0x3f80, 0x0001, 0x0000, 0x7f7f, 0x3f80}).view(),
                              {.rtol = 1, .atol = 0})
                          .value();
  EXPECT_EQ(result.ulp[0], 2u);  // the same, and the two zeros
  EXPECT_EQ(result.ulp[1], 2u);  // neighbours, and infinity beside the greatest number
  EXPECT_EQ(result.ulp[2], 1u);  // across zero
  EXPECT_EQ(result.ulp[5], 1u);  // 16 apart
}

TEST(Ulp, NanHasADistanceToNanOnly) {
  const auto result =
      Compare(F32({kNan, kNan, 1, 2}).view(), F32({-kNan, 1, kNan, 2}).view(), {}).value();
  EXPECT_EQ(result.ulp[0], 2u);
  EXPECT_EQ(result.nan_in_actual, 1u);
  EXPECT_EQ(result.nan_in_expected, 1u);
}

TEST(Ulp, Int64AndDoubleReachTheLastBin) {
  const std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                     high = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Compare(I64({low}).view(), I64({high}).view(), {}).value().ulp[65], 1u);
  const double most = std::numeric_limits<double>::max();
  EXPECT_EQ(Compare(F64({most}).view(), F64({-most}).view(), {}).value().ulp[65], 1u);
}

TEST(Mismatches, SpansNameTheRowsAndColumns) {
  const std::uint64_t rows = 50, columns = 70;
  std::vector<float> expected(2 * rows * columns, 1.0f), actual = expected;
  for (const std::uint64_t row : {7u, 9u}) {
    for (std::uint64_t column = 3; column < 66; column += 2) {
      actual[(rows + row) * columns + column] = 0;
    }
  }
  const TestTensor a(layout::Dtype::kFloat32, {2, rows, columns}, actual),
      b(layout::Dtype::kFloat32, {2, rows, columns}, expected);
  const auto result = Compare(a.view(), b.view(), {}).value();
  ASSERT_EQ(result.spans.size(), 3u);
  const auto is = [](const MismatchSpan& span, std::uint64_t first, std::uint64_t last,
                     std::uint64_t distinct) {
    return span.first == first && span.last == last && span.distinct == distinct;
  };
  EXPECT_TRUE(is(result.spans[0], 1, 1, 1));
  EXPECT_TRUE(is(result.spans[1], 7, 9, 2));
  EXPECT_TRUE(is(result.spans[2], 3, 65, 32));
  EXPECT_EQ(result.mismatched_zero, result.mismatched);
  EXPECT_EQ(result.mismatched_greater, 0u);
}

TEST(Mismatches, SpansAgreeWithEveryIndexOnRandomShapes) {
  std::uint32_t state = 7;
  const auto next = [&state](std::uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> shape;
    std::uint64_t count = 1;
    for (std::uint32_t dims = next(5); dims > 0; --dims) {
      shape.push_back(1 + next(round % 2 == 0 ? 9 : 40));
      count *= shape.back();
    }
    std::vector<std::int32_t> expected(count, 0), actual(count, 0);
    std::vector<std::set<std::uint64_t>> seen(shape.size());
    for (std::uint32_t wrong = 1 + next(20); wrong > 0; --wrong) {
      std::uint64_t flat = next(static_cast<std::uint32_t>(count));
      actual[flat] = 1;
      for (std::size_t dim = shape.size(); dim-- > 0; flat /= shape[dim]) {
        seen[dim].insert(flat % shape[dim]);
      }
    }
    const TestTensor a(layout::Dtype::kInt32, shape, actual),
        b(layout::Dtype::kInt32, shape, expected);
    const auto spans = Compare(a.view(), b.view(), {.rtol = 0, .atol = 0}).value().spans;
    ASSERT_EQ(spans.size(), shape.size());
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      EXPECT_EQ(spans[dim].first, *seen[dim].begin());
      EXPECT_EQ(spans[dim].last, *seen[dim].rbegin());
      EXPECT_EQ(spans[dim].distinct, seen[dim].size());
    }
  }
}

TEST(Compare, OfFloat4ComparesAndCountsTheTwoValuesInEachByte) {
  const auto tensor = [](std::vector<std::uint8_t> bytes) {
    return TestTensor(Dtype::kFloat4E2m1fnX2, {2, 2}, std::move(bytes));
  };
  const TestTensor expected = tensor({0x21, 0x43, 0x65, 0x00});
  EXPECT_TRUE(Outcome(tensor({0x21, 0x43, 0x65, 0x08}), expected, {.rtol = 0, .atol = 0}).ok);
  // 3 in place of 2, and -0.5 in place of 0.
  const CompareResult result =
      Outcome(tensor({0x21, 0x53, 0x65, 0x90}), expected, {.rtol = 0, .atol = 0});
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.compared, 8u);
  EXPECT_EQ(result.mismatched, 2u);
  EXPECT_EQ(result.max_abs.value, 1);
  EXPECT_THAT(result.text.Whole(),
              AllOf(HasSubstr("Mismatched elements: 2 / 8"),
                    HasSubstr("Greatest absolute difference: 1.0 at index (0, 3)")));
  EXPECT_TRUE(Outcome(tensor({0x21, 0x53, 0x65, 0x90}), expected, {.rtol = 0, .atol = 1}).ok);
}

class CompareOfDtype : public ::testing::TestWithParam<layout::DtypeInfo> {};

// Random bytes, and bytes that differ from them in few or many elements, a little or much.
TEST_P(CompareOfDtype, KernelsOfEveryCpuAgreeWithThePlainLoops) {
  const layout::DtypeInfo& info = GetParam();
  std::uint32_t state = 99;
  const auto next = [&state] {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
  };
  for (int round = 0; round < 60; ++round) {
    const std::uint64_t count = round % 3 == 0 ? 4096 : 1 + next() % 5000;
    std::vector<std::uint8_t> expected(count * info.bytes);
    for (auto& byte : expected) byte = static_cast<std::uint8_t>(next());
    if (round % 4 != 0) {  // of like magnitude, so that there is no NaN
      for (std::uint64_t i = 1; i <= count; ++i) {
        std::uint8_t& last = expected[i * info.bytes - 1];
        last = static_cast<std::uint8_t>((last & 0x81) | 0x3c);
      }
    }
    std::vector<std::uint8_t> actual = expected;
    const std::uint32_t rarity = round % 5 == 0 ? 1 : round % 5 == 1 ? 3000 : 7;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (next() % rarity != 0) continue;
      const std::size_t byte = round % 2 == 0 ? 0 : next() % info.bytes;
      actual[i * info.bytes + byte] ^= static_cast<std::uint8_t>(1u << next() % 8);
    }
    const TestTensor a(info.dtype, {count}, actual), b(info.dtype, {count}, expected);
    CompareOptions options = DefaultTolerances(info.dtype);
    if (round % 3 == 1) options = {.rtol = 0.05, .atol = 3};
    options.equal_nan = round % 7 == 0;
    SCOPED_TRACE(testing::Message() << "round " << round);
    ExpectSameOnEveryCpu(a, b, options);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompareOfDtype, ::testing::ValuesIn(layout::kDtypes),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cgdebug::numerics
