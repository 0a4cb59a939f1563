// ordered_key.h: floating-point numbers as integers in the same order.
//
// A float's bits, with the magnitude bits of negative numbers flipped, are a signed integer that is
// ordered like the float. Counting, minimum and histogram then are integer loops, which compilers
// vectorize in the type's own width; on floats they may not, because of NaN and signed zero.
// Internal to daemon/core/numerics.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>

#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::numerics {

template <typename T>
struct OrderedKey {  // integers and bool: the value itself, in 16 bits at least
  static constexpr bool kIsFloating = false;
  using Key = std::conditional_t<(sizeof(T) < 2), std::int16_t, T>;
  static constexpr Key FromElement(T element) { return static_cast<Key>(ToNative(element)); }
  static constexpr double ToValue(Key key) { return static_cast<double>(key); }
  // Requires: `value` is one that T has.
  static constexpr Key FromValue(double value) { return static_cast<Key>(value); }
  static constexpr Key kLowestFinite = std::numeric_limits<Key>::min();
  static constexpr Key kHighestFinite = std::numeric_limits<Key>::max();
};

template <typename T>
requires(kIsFloatingElement<T> && !kHasOneNan<T>) struct OrderedKey<T> {
  static constexpr bool kIsFloating = true;
  using Bits = std::conditional_t<
      sizeof(T) == 1, std::int8_t,
      std::conditional_t<sizeof(T) == 2, std::int16_t,
                         std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>>>;
  using Key = std::conditional_t<sizeof(T) == 1, std::int16_t, Bits>;
  static constexpr Key kMagnitude = std::numeric_limits<Bits>::max();
  // float8_e4m3fn has no infinity: no element has this key.
  static constexpr Key kPosInf = std::is_same_v<T, Half>           ? Key{0x7c00}
                                 : std::is_same_v<T, Bfloat16>     ? Key{0x7f80}
                                 : std::is_same_v<T, Float8E5m2>   ? Key{0x7c}
                                 : std::is_same_v<T, Float8E4m3fn> ? Key{0x80}
                                 : sizeof(T) == 4                  ? static_cast<Key>(0x7f800000)
                                                  : static_cast<Key>(0x7ff0000000000000);
  static constexpr Key kMinNormal = std::is_same_v<T, Half>           ? Key{0x0400}
                                    : std::is_same_v<T, Bfloat16>     ? Key{0x0080}
                                    : std::is_same_v<T, Float8E5m2>   ? Key{0x04}
                                    : std::is_same_v<T, Float8E4m3fn> ? Key{0x08}
                                    : sizeof(T) == 4                  ? static_cast<Key>(0x00800000)
                                                     : static_cast<Key>(0x0010000000000000);
  // -x has the key -1 - key(x); so -0.0 is -1.
  static constexpr Key kNegInf = static_cast<Key>(-1 - kPosInf);
  static constexpr Key kHighestFinite =
      std::is_same_v<T, Float8E4m3fn> ? Key{0x7e} : static_cast<Key>(kPosInf - 1);
  static constexpr Key kLowestFinite = static_cast<Key>(-1 - kHighestFinite);

  static constexpr Key FromElement(T element) { return Flip(std::bit_cast<Bits>(element)); }
  static constexpr double ToValue(Key key) {
    return ToDouble(std::bit_cast<T>(static_cast<Bits>(Flip(key))));
  }
  static Key FromValue(double value) {
    Key low = kLowestFinite, high = kHighestFinite;  // ToValue(low) <= value <= ToValue(high)
    while (low < high) {
      const Key middle = std::midpoint(low, high);
      if (ToValue(middle) < value) {
        low = static_cast<Key>(middle + 1);
      } else {
        high = middle;
      }
    }
    return low == -1 && !std::signbit(value) ? Key{0} : low;
  }
  static constexpr bool IsNan(Key key) {
    return (key > kHighestFinite && key != kPosInf) || (key < kLowestFinite && key != kNegInf);
  }

 private:
  static constexpr Key Flip(Key bits) {
    return static_cast<Key>(bits ^ ((bits >> (8 * sizeof(Key) - 1)) & kMagnitude));
  }
};

// Keys have more bits than these elements. The key of the NaN lies above the others, and no element
// has the key of an infinity. As above, -x has the key -1 - key(x); nothing has the key -1, nor, if
// there is no zero, the key 0.
template <typename T>
requires kHasOneNan<T>
struct OrderedKey<T> {
  static constexpr bool kIsFloating = true;
  static constexpr bool kHasZero = !std::is_same_v<T, Float8E8m0fnu>;
  using Key = std::int16_t;
  static constexpr Key kHighestFinite = kHasZero ? 0x7f : 0xff;
  static constexpr Key kLowestFinite = kHasZero ? -0x80 : 1;
  static constexpr Key kMinNormal = !kHasZero ? 1 : std::is_same_v<T, Float8E4m3fnuz> ? 0x08 : 0x04;
  static constexpr Key kNan = 0x100;
  static constexpr Key kPosInf = 0x101;
  static constexpr Key kNegInf = -1 - kPosInf;

  static constexpr Key FromElement(T element) {
    if (element.bits == kNanBits<T>) return kNan;
    if constexpr (!kHasZero) return static_cast<Key>(element.bits + 1);
    const auto magnitude = static_cast<Key>(element.bits & 0x7f);
    return element.bits < 0x80 ? magnitude : static_cast<Key>(-1 - magnitude);
  }
  static constexpr double ToValue(Key key) {
    if constexpr (!kHasZero) return ToDouble(T{static_cast<std::uint8_t>(key - 1)});
    if (key >= -1) return ToDouble(T{static_cast<std::uint8_t>(key == -1 ? 0 : key)});
    return ToDouble(T{static_cast<std::uint8_t>(0x80 | (-1 - key))});
  }
  // Requires: `value` is one that T has.
  static constexpr Key FromValue(double value) {
    Key key = kLowestFinite;
    while (ToValue(key) < value) ++key;
    return key == -1 ? Key{0} : key;
  }
  static constexpr bool IsNan(Key key) { return key == kNan; }
};

}  // namespace cgdebug::numerics
