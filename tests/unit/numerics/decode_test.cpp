#include "daemon/core/numerics/kernels/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "daemon/core/numerics/kernels/ordered_key.h"
#include "daemon/core/numerics/tensor_view.h"
#include "tests/unit/numerics/numerics_test_util.h"

namespace cgdebug::numerics {
namespace {

using layout::Dtype;
using ::testing::HasSubstr;

// The definition of IEEE 754 binary16, in double.
double HalfByDefinition(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) {
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Decode, EveryHalfIsExact) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const double expected = HalfByDefinition(static_cast<std::uint16_t>(bits));
    const float got = HalfToFloat(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(got, expected) << bits;
      ASSERT_EQ(std::signbit(got), std::signbit(expected)) << bits;
    }
  }
}

TEST(Decode, EveryBfloat16IsTheUpperHalfOfAFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float got = Bfloat16ToFloat(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got), bits << 16);
  }
}

TEST(Decode, EveryFloat8FollowsItsDefinition) {
  for (std::uint32_t bits = 0; bits <= 0xff; ++bits) {
    const double sign = bits & 0x80 ? -1 : 1;
    const int exponent = bits >> 3 & 0xf, fraction = bits & 7;
    const double e4m3fn = (bits & 0x7f) == 0x7f ? std::nan("")
                          : exponent == 0       ? sign * std::ldexp(fraction, -9)
                                                : sign * std::ldexp(8 + fraction, exponent - 10);
    const float got = Float8E4m3fnToFloat(static_cast<std::uint8_t>(bits));
    const float e5m2 = Float8E5m2ToFloat(static_cast<std::uint8_t>(bits));
    const double half = HalfByDefinition(static_cast<std::uint16_t>(bits << 8));
    EXPECT_TRUE(std::isnan(e4m3fn) ? std::isnan(got) : got == e4m3fn) << bits;
    EXPECT_TRUE(std::isnan(half) ? std::isnan(e5m2) : e5m2 == half) << bits;
    EXPECT_EQ(std::signbit(got), bits >= 0x80) << bits;
  }
}

TEST(Decode, EveryFloat8WithOneNanFollowsItsDefinition) {
  // Both have one more in the exponent's bias than the IEEE type of their size.
  const auto fnuz = [](std::uint32_t bits, int mantissa_bits, int bias) {
    const int exponent = static_cast<int>(bits & 0x7f) >> mantissa_bits, one = 1 << mantissa_bits;
    const int fraction = static_cast<int>(bits) & (one - 1);
    const double magnitude = exponent == 0
                                 ? std::ldexp(fraction, 1 - bias - mantissa_bits)
                                 : std::ldexp(one + fraction, exponent - bias - mantissa_bits);
    return bits & 0x80 ? -magnitude : magnitude;
  };
  for (std::uint32_t bits = 0; bits <= 0xff; ++bits) {
    const float e4m3 = Float8E4m3fnuzToFloat(static_cast<std::uint8_t>(bits));
    const float e5m2 = Float8E5m2fnuzToFloat(static_cast<std::uint8_t>(bits));
    const double e8m0 = Float8E8m0fnuToDouble(static_cast<std::uint8_t>(bits));
    if (bits == 0x80) {
      EXPECT_TRUE(std::isnan(e4m3) && std::isnan(e5m2));
    } else {
      EXPECT_EQ(e4m3, fnuz(bits, 3, 8)) << bits;
      EXPECT_EQ(e5m2, fnuz(bits, 2, 16)) << bits;
    }
    if (bits == 0xff) {
      EXPECT_TRUE(std::isnan(e8m0));
    } else {
      EXPECT_EQ(e8m0, std::ldexp(1, static_cast<int>(bits) - 127)) << bits;
    }
  }
}

TEST(Decode, AByteOfFloat4HoldsTwoValuesTheLowerHalfFirst) {
  const auto value_of = [](unsigned half) {
    const int exponent = static_cast<int>(half >> 1 & 3), fraction = static_cast<int>(half & 1);
    const double magnitude =
        exponent == 0 ? 0.5 * fraction : std::ldexp(1 + 0.5 * fraction, exponent - 1);
    return half & 8 ? -magnitude : magnitude;
  };
  for (unsigned bits = 0; bits <= 0xff; ++bits) {
    const Float4E2m1fnX2 element{static_cast<std::uint8_t>(bits)};
    const auto [first, second] = ValuesOf(element);
    EXPECT_EQ(first, value_of(bits & 0xf)) << bits;
    EXPECT_EQ(second, value_of(bits >> 4)) << bits;
    EXPECT_EQ(std::fabs(ToDouble(element)), std::fmax(std::fabs(first), std::fabs(second)));
  }
}

TEST(Decode, NanOfHalfKeepsItsPayload) {
  EXPECT_EQ(std::bit_cast<std::uint32_t>(HalfToFloat(0x7e01)), 0x7fc02000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(HalfToFloat(0xfc01)), 0xff802000u);
}

TEST(Decode, Int64IsExactOverItsWholeRange) {
  const auto tensor = I64({std::numeric_limits<std::int64_t>::max(),
                           std::numeric_limits<std::int64_t>::min(), (1LL << 53) + 1});
  EXPECT_EQ(ElementAsInt64(tensor.view(), 0), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(ElementAsInt64(tensor.view(), 1), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(ElementAsInt64(tensor.view(), 2), (1LL << 53) + 1);
}

TEST(Decode, AnyNonzeroByteIsTrue) {
  const auto tensor = Vector<std::uint8_t>(Dtype::kBool, {0, 1, 255});
  EXPECT_EQ(ElementAsInt64(tensor.view(), 0), 0);
  EXPECT_EQ(ElementAsDouble(tensor.view(), 2), 1.0);
}

TEST(Decode, ReadsUnalignedData) {
  std::vector<std::byte> bytes(9);
  const double value = 1.25;
  std::memcpy(bytes.data() + 1, &value, 8);
  const std::uint64_t shape[] = {1};
  const auto view =
      MakeTensorView(Dtype::kFloat64, shape, std::span<const std::byte>(bytes).subspan(1)).value();
  EXPECT_EQ(ElementAsDouble(view, 0), 1.25);
}

TEST(Decode, VisitReachesTheTypeOfEveryDtype) {
  for (const layout::DtypeInfo& info : layout::kDtypes) {
    VisitDtype(info.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      EXPECT_EQ(sizeof(T), info.bytes) << info.name;
      EXPECT_EQ(kIsFloatingElement<T>, info.is_floating) << info.name;
    });
  }
  EXPECT_THROW(VisitDtype(Dtype::kInvalid, [](auto) {}), std::invalid_argument);
}

TEST(OrderedKey, OrdersHalvesAsTheirValues) {
  using K = OrderedKey<Half>;
  double last = -std::numeric_limits<double>::infinity();
  for (int key = K::kNegInf; key <= K::kPosInf; ++key) {
    const double value = K::ToValue(static_cast<K::Key>(key));
    ASSERT_GE(value, last) << key;
    ASSERT_EQ(K::FromElement(Half{std::bit_cast<std::uint16_t>(
                  K::FromElement(std::bit_cast<Half>(static_cast<std::int16_t>(key))))}),
              key);
    last = value;
  }
  EXPECT_EQ(K::ToValue(K::kPosInf), std::numeric_limits<double>::infinity());
  EXPECT_EQ(K::ToValue(K::kHighestFinite), 65504.0);
  EXPECT_EQ(K::ToValue(K::kLowestFinite), -65504.0);
}

TEST(OrderedKey, NanLiesOutsideTheInfinities) {
  EXPECT_GT(OrderedKey<Half>::FromElement(Half{0x7c01}), OrderedKey<Half>::kPosInf);
  EXPECT_LT(OrderedKey<Half>::FromElement(Half{0xfc01}), OrderedKey<Half>::kNegInf);
  EXPECT_GT(OrderedKey<double>::FromElement(std::nan("")), OrderedKey<double>::kPosInf);
}

template <typename T>
void ExpectKeysInTheOrderOfValues() {
  using K = OrderedKey<T>;
  int finite = 0;
  for (unsigned a = 0; a <= 0xff; ++a) {
    const T element{static_cast<std::uint8_t>(a)};
    const auto key = K::FromElement(element);
    ASSERT_NE(key, K::kPosInf);
    ASSERT_NE(key, K::kNegInf);
    ASSERT_EQ(K::IsNan(key), a == kNanBits<T>);
    if (K::IsNan(key)) {
      EXPECT_GT(key, K::kHighestFinite);
      continue;
    }
    ++finite;
    ASSERT_EQ(K::ToValue(key), ToDouble(element)) << a;
    ASSERT_EQ(K::FromValue(ToDouble(element)), key) << a;
    for (unsigned b = 0; b <= 0xff; ++b) {
      const T other{static_cast<std::uint8_t>(b)};
      if (b == kNanBits<T>) continue;
      ASSERT_EQ(key < K::FromElement(other), ToDouble(element) < ToDouble(other)) << a << " " << b;
    }
  }
  EXPECT_EQ(finite, 255);
  for (int key = K::kLowestFinite; key < K::kHighestFinite; ++key) {  // the places between, too
    ASSERT_LE(K::ToValue(static_cast<typename K::Key>(key)),
              K::ToValue(static_cast<typename K::Key>(key + 1)));
  }
}

TEST(OrderedKey, OrdersTypesWithOneNanAsTheirValues) {
  ExpectKeysInTheOrderOfValues<Float8E4m3fnuz>();
  ExpectKeysInTheOrderOfValues<Float8E5m2fnuz>();
  ExpectKeysInTheOrderOfValues<Float8E8m0fnu>();
}

TEST(TensorView, ElementCountRefusesOverflow) {
  const std::uint64_t huge[] = {1ull << 32, 1ull << 32}, with_zero[] = {1ull << 63, 4, 0};
  EXPECT_FALSE(ElementCount(huge).has_value());
  EXPECT_EQ(ElementCount(with_zero), 0u);
  EXPECT_EQ(ElementCount({}), 1u);
}

TEST(TensorView, PayloadBytesRefusesOverflowAndUnknownDtype) {
  const std::uint64_t shape[] = {1ull << 61};
  EXPECT_FALSE(PayloadBytes(Dtype::kFloat64, shape).has_value());
  EXPECT_EQ(PayloadBytes(Dtype::kInt16, shape), 1ull << 62);
  EXPECT_FALSE(PayloadBytes(Dtype::kInvalid, {}).has_value());
}

TEST(TensorView, DataOfAnotherSizeIsRefused) {
  const std::uint64_t shape[] = {2, 3};
  const std::vector<std::byte> data(20);
  const auto view = MakeTensorView(Dtype::kFloat32, shape, data);
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.error().message, "f32[2,3] takes 24 bytes, but there are 20");
}

TEST(TensorView, UnknownDtypeIsRefused) {
  const auto view = MakeTensorView(static_cast<Dtype>(77), {}, {});
  ASSERT_FALSE(view.ok());
  EXPECT_THAT(view.error().message, HasSubstr("unknown dtype 77"));
}

TEST(TensorView, CountComesFromTheData) {
  const std::uint64_t lie[] = {1000};
  const std::vector<std::byte> data(10);
  EXPECT_EQ((TensorView{Dtype::kFloat32, lie, data}.count()), 2u);
  EXPECT_EQ((TensorView{Dtype::kInvalid, lie, data}.count()), 0u);
}

}  // namespace
}  // namespace cgdebug::numerics
