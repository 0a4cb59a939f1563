// decode.h: from the bytes of a tensor to numbers.
//
// Element types are one C++ type each, so that a function over them is a template:
//
//   VisitDtype(view.dtype, [&](auto element) {
//     using T = typename decltype(element)::type;   // Bool8, std::uint8_t, ..., Half, float
//     for (std::uint64_t i = 0; i < view.count(); ++i) {
//       Use(ToNative(LoadElement<T>(view.data, i)));
//     }
//   });
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "daemon/core/numerics/tensor_view.h"
#include "proto/layout/dtype.h"

namespace cgdebug::numerics {

struct Bool8 {
  std::uint8_t bits;
};
struct Half {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};
struct Float8E4m3fn {
  std::uint8_t bits;
};
struct Float8E5m2 {
  std::uint8_t bits;
};
struct Float8E4m3fnuz {
  std::uint8_t bits;
};
struct Float8E5m2fnuz {
  std::uint8_t bits;
};
struct Float8E8m0fnu {
  std::uint8_t bits;
};
struct Float4E2m1fnX2 {  // two values, the first in the lower half
  std::uint8_t bits;
};

// Exact for every value; NaN keeps its payload. Without branches and without reading a subnormal
// float, so it vectorizes and does not depend on the thread's denormals-are-zero mode.
constexpr float HalfToFloat(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7fffu;
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);
  const std::uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(sign | special | (magnitude < 0x0400u ? subnormal : normal));
}
constexpr float Bfloat16ToFloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
constexpr float Float8E4m3fnToFloat(std::uint8_t bits) {
  const std::uint32_t magnitude = bits & 0x7fu;
  const std::uint32_t sign = (bits & 0x80u) << 24;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9f);
  const std::uint32_t normal = (magnitude << 20) + (120u << 23);
  const std::uint32_t special = magnitude == 0x7fu ? 0x7f800000u : 0u;
  return std::bit_cast<float>(sign | special | (magnitude < 0x08u ? subnormal : normal));
}
constexpr float Float8E5m2ToFloat(std::uint8_t bits) {
  return HalfToFloat(static_cast<std::uint16_t>(bits << 8));
}
// The types ending in fnuz have one more in the exponent's bias.
constexpr float Float8E4m3fnuzToFloat(std::uint8_t bits) {
  if (bits == 0x80) return std::numeric_limits<float>::quiet_NaN();
  const auto half = static_cast<std::uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7);
  return HalfToFloat(half) * 0x1p7f;
}
constexpr float Float8E5m2fnuzToFloat(std::uint8_t bits) {
  if (bits == 0x80) return std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t exponent = bits >> 2 & 0x1fu, mantissa = bits & 0x3u;
  const auto significand = static_cast<float>(exponent == 0 ? mantissa : mantissa + 4);
  const std::uint32_t place = (exponent == 0 ? 1u : exponent) + 127 - 16 - 2;
  const float magnitude = significand * std::bit_cast<float>(place << 23);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}
// As a double, because the smallest is a subnormal float.
constexpr double Float8E8m0fnuToDouble(std::uint8_t bits) {
  if (bits == 0xff) return std::numeric_limits<double>::quiet_NaN();
  return std::bit_cast<double>((std::uint64_t{bits} + 1023 - 127) << 52);
}
constexpr float Float4E2m1fnToFloat(std::uint8_t bits) {  // the lower four
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float magnitude = kMagnitudes[bits & 7];
  return (bits & 8) != 0 ? -magnitude : magnitude;
}
constexpr std::array<float, 2> ValuesOf(Float4E2m1fnX2 element) {
  return {Float4E2m1fnToFloat(element.bits),
          Float4E2m1fnToFloat(static_cast<std::uint8_t>(element.bits >> 4))};
}

// The value in a type of the language that holds it exactly: bool, an integer, float or double.
constexpr bool ToNative(Bool8 element) { return element.bits != 0; }
constexpr float ToNative(Half element) { return HalfToFloat(element.bits); }
constexpr float ToNative(Bfloat16 element) { return Bfloat16ToFloat(element.bits); }
constexpr float ToNative(Float8E4m3fn element) { return Float8E4m3fnToFloat(element.bits); }
constexpr float ToNative(Float8E5m2 element) { return Float8E5m2ToFloat(element.bits); }
constexpr float ToNative(Float8E4m3fnuz element) { return Float8E4m3fnuzToFloat(element.bits); }
constexpr float ToNative(Float8E5m2fnuz element) { return Float8E5m2fnuzToFloat(element.bits); }
constexpr double ToNative(Float8E8m0fnu element) { return Float8E8m0fnuToDouble(element.bits); }
template <typename T>
requires std::is_arithmetic_v<T>
constexpr T ToNative(T element) { return element; }
// Of the two values the one that is farther from 0.
constexpr float ToNative(Float4E2m1fnX2 element) {
  const auto [first, second] = ValuesOf(element);
  return (element.bits >> 4 & 7) > (element.bits & 7) ? second : first;
}

// Exact, except for int64 beyond 2^53.
template <typename T>
constexpr double ToDouble(T element) {
  return static_cast<double>(ToNative(element));
}

template <typename T>
inline constexpr bool kIsFloatingElement = !std::is_integral_v<T> && !std::is_same_v<T, Bool8>;

// Elements of two values: what looks at each value takes them from Float4Values.
template <typename T>
inline constexpr bool kHoldsTwo = std::is_same_v<T, Float4E2m1fnX2>;

// Types whose bits are not a sign and a magnitude that sorts as the number does, with the NaNs
// above all: one pattern that would be -0, or would sort as a negative number, is their only NaN.
template <typename T>
inline constexpr bool kHasOneNan =
    std::is_same_v<T, Float8E4m3fnuz> || std::is_same_v<T, Float8E5m2fnuz> ||
    std::is_same_v<T, Float8E8m0fnu>;
template <typename T>
requires kHasOneNan<T>
inline constexpr std::uint8_t kNanBits = std::is_same_v<T, Float8E8m0fnu> ? 0xff : 0x80;

// The type of an element of `dtype`, whose bits are `Bits`: for an integer `Bits` itself.
template <layout::Dtype dtype, typename Bits>
struct ElementOf {
  using type = Bits;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kBool, Bits> {
  using type = Bool8;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat16, Bits> {
  using type = Half;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kBfloat16, Bits> {
  using type = Bfloat16;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat32, Bits> {
  using type = float;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat64, Bits> {
  using type = double;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E4m3fn, Bits> {
  using type = Float8E4m3fn;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E5m2, Bits> {
  using type = Float8E5m2;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E4m3fnuz, Bits> {
  using type = Float8E4m3fnuz;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E5m2fnuz, Bits> {
  using type = Float8E5m2fnuz;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E8m0fnu, Bits> {
  using type = Float8E8m0fnu;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat4E2m1fnX2, Bits> {
  using type = Float4E2m1fnX2;
};

// Requires: i < data.size() / sizeof(T).
template <typename T>
T LoadElement(std::span<const std::byte> data, std::uint64_t i) {
  T element;
  std::memcpy(&element, data.data() + i * sizeof(T), sizeof(T));
  return element;
}

// Calls visit(std::type_identity<T>{}) with the element type of `dtype`.
// Fails: throws std::invalid_argument for an unknown dtype.
template <typename Visit>
decltype(auto) VisitDtype(layout::Dtype dtype, Visit&& visit) {
  using layout::Dtype;
  switch (dtype) {
#define CGDEBUG_VISIT(name, number, torch, text, short_name, bits, floating, ...)              \
  case Dtype::k##name: {                                                                       \
    using Element = typename ElementOf<Dtype::k##name, bits>::type;                            \
    static_assert(kIsFloatingElement<Element> == floating && sizeof(Element) == sizeof(bits)); \
    return visit(std::type_identity<Element>{});                                               \
  }
    CGDEBUG_DTYPES(CGDEBUG_VISIT)
#undef CGDEBUG_VISIT
    case Dtype::kInvalid:
      break;
  }
  throw std::invalid_argument("tensor of unknown dtype " +
                              std::to_string(static_cast<unsigned>(dtype)));
}

// Requires: i < view.count().
inline double ElementAsDouble(const TensorView& view, std::uint64_t i) {
  return VisitDtype(view.dtype, [&](auto element) {
    return ToDouble(LoadElement<typename decltype(element)::type>(view.data, i));
  });
}

// Exact. Requires: an integer or bool tensor, i < view.count().
inline std::int64_t ElementAsInt64(const TensorView& view, std::uint64_t i) {
  return VisitDtype(view.dtype, [&](auto element) -> std::int64_t {
    using T = typename decltype(element)::type;
    if constexpr (kIsFloatingElement<T>) {
      throw std::invalid_argument("a floating tensor has no exact integers");
    } else {
      return static_cast<std::int64_t>(ToNative(LoadElement<T>(view.data, i)));
    }
  });
}

}  // namespace cgdebug::numerics
