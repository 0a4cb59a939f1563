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

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// The value in a type of the language that holds it exactly: bool, an integer, float or double.
constexpr bool ToNative(Bool8 element) { return element.bits != 0; }
constexpr float ToNative(Half element) { return HalfToFloat(element.bits); }
constexpr float ToNative(Bfloat16 element) { return Bfloat16ToFloat(element.bits); }
constexpr float ToNative(Float8E4m3fn element) { return Float8E4m3fnToFloat(element.bits); }
constexpr float ToNative(Float8E5m2 element) { return Float8E5m2ToFloat(element.bits); }
template <typename T>
requires std::is_arithmetic_v<T>
constexpr T ToNative(T element) { return element; }

// Exact, except for int64 beyond 2^53.
template <typename T>
constexpr double ToDouble(T element) {
  return static_cast<double>(ToNative(element));
}

template <typename T>
inline constexpr bool kIsFloatingElement = !std::is_integral_v<T> && !std::is_same_v<T, Bool8>;

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
