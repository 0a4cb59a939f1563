// element_types.cuh: the dtypes as kernels see them: raw bits and their meaning.
#pragma once

#include <cstdint>
#include <type_traits>

#include "proto/layout/dtype.h"

namespace cgdebug::capture {

__device__ inline float HalfToFloat(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// A floating type by its bits: sign, exponent, mantissa.
template <typename RawBits, typename Widened, int kMantissaBits>
struct Floating {
  using Raw = RawBits;
  using Value = Widened;
  static constexpr bool kFloating = true;
  static constexpr Raw kMantissa = static_cast<Raw>((Raw{1} << kMantissaBits) - 1);
  static constexpr Raw kSign = static_cast<Raw>(Raw{1} << (8 * sizeof(Raw) - 1));
  static constexpr Raw kExponent = static_cast<Raw>(kSign - 1 - kMantissa);
  __device__ static bool NonFinite(Raw raw) { return (raw & kExponent) == kExponent; }
  __device__ static bool IsNan(Raw raw) { return (raw & kMantissa) != 0; }
  // The mantissa of a NaN, moved to where a float64 has it.
  __device__ static std::uint64_t NanMantissa(Raw raw) {
    return static_cast<std::uint64_t>(raw & kMantissa) << (52 - kMantissaBits);
  }
};

struct Float16 : Floating<std::uint16_t, float, 10> {
  __device__ static float Get(Raw raw) { return HalfToFloat(raw); }
};
struct Bfloat16 : Floating<std::uint16_t, float, 7> {
  __device__ static float Get(Raw raw) { return __uint_as_float(std::uint32_t{raw} << 16); }
};
struct Float32 : Floating<std::uint32_t, float, 23> {
  __device__ static float Get(Raw raw) { return __uint_as_float(raw); }
};
struct Float64 : Floating<std::uint64_t, double, 52> {
  __device__ static double Get(Raw raw) {
    return __longlong_as_double(static_cast<long long>(raw));
  }
};
struct Float8E5m2 : Floating<std::uint8_t, float, 2> {  // the upper half of a float16
  __device__ static float Get(Raw raw) { return HalfToFloat(static_cast<std::uint16_t>(raw << 8)); }
};
struct Float8E4m3fn : Floating<std::uint8_t, float, 3> {  // no infinity; one NaN of either sign
  __device__ static float Get(Raw raw) {
    const float magnitude = HalfToFloat(static_cast<std::uint16_t>((raw & 0x7f) << 7)) * 256.0f;
    return (raw & kSign) != 0 ? -magnitude : magnitude;
  }
  __device__ static bool NonFinite(Raw raw) { return (raw & 0x7f) == 0x7f; }
  __device__ static bool IsNan(Raw) { return true; }
};

// A type whose only non-finite element is the NaN of these bits.
template <int kMantissaBits, std::uint8_t kBits>
struct WithOneNan : Floating<std::uint8_t, float, kMantissaBits> {
  static constexpr std::uint8_t kNan = kBits;
  __device__ static bool NonFinite(std::uint8_t raw) { return raw == kNan; }
  __device__ static bool IsNan(std::uint8_t) { return true; }
};
struct Float8E4m3fnuz : WithOneNan<3, 0x80> {
  __device__ static float Get(Raw raw) {
    const float magnitude = HalfToFloat(static_cast<std::uint16_t>((raw & 0x7f) << 7)) * 128.0f;
    return (raw & kSign) != 0 ? -magnitude : magnitude;
  }
};
struct Float8E5m2fnuz : WithOneNan<2, 0x80> {
  __device__ static float Get(Raw raw) {
    const unsigned exponent = raw >> 2 & 0x1f;
    const auto significand = static_cast<float>((raw & kMantissa) + (exponent == 0 ? 0 : 4));
    const unsigned place = (exponent == 0 ? 1 : exponent) + 127 - 16 - 2;
    const float magnitude = significand * __uint_as_float(place << 23);
    return (raw & kSign) != 0 ? -magnitude : magnitude;
  }
};
struct Float8E8m0fnu : WithOneNan<0, 0xff> {  // all exponent: 2^(raw - 127)
  static constexpr Raw kSign = 0;
  __device__ static float Get(Raw raw) {
    return __uint_as_float(raw == 0 ? 0x00400000u : std::uint32_t{raw} << 23);
  }
};
struct Float4E2m1fnX2
    : Floating<std::uint8_t, float, 1> {  // two values, the first in the lower half
  __device__ static float ValueOf(unsigned half) {
    // As a float16: the exponent's bias is 15 in place of 1.
    const float magnitude = HalfToFloat(static_cast<std::uint16_t>((half & 7) << 9)) * 16384.0f;
    return (half & 8) != 0 ? -magnitude : magnitude;
  }
  __device__ static float Get(Raw raw) { return ValueOf(raw); }  // the first
  __device__ static bool NonFinite(Raw) { return false; }
};
template <typename Type>
inline constexpr bool kHoldsTwo = std::is_same_v<Type, Float4E2m1fnX2>;
template <typename Type>
inline constexpr bool kHasOneNan = false;
template <>
inline constexpr bool kHasOneNan<Float8E4m3fnuz> = true;
template <>
inline constexpr bool kHasOneNan<Float8E5m2fnuz> = true;
template <>
inline constexpr bool kHasOneNan<Float8E8m0fnu> = true;

template <typename T>
struct Integer {
  using Raw = T;
  using Value = double;
  static constexpr bool kFloating = false;
};

// Whether statistics count the elements of the type's largest magnitude, and the bits, but for the
// sign, from which on a finite float is one.
template <typename Type>
inline constexpr bool kCountsSaturated = std::is_same_v<Type, Integer<std::int8_t>>;
template <typename Type>
inline constexpr std::uint8_t kSaturatedFrom = 0x7f;
#define CGDEBUG_SATURATES(Type, bits)                  \
  template <>                                          \
  inline constexpr bool kCountsSaturated<Type> = true; \
  template <>                                          \
  inline constexpr std::uint8_t kSaturatedFrom<Type> = bits;
CGDEBUG_SATURATES(Float8E4m3fn, 0x7e)
CGDEBUG_SATURATES(Float8E5m2, 0x7b)
CGDEBUG_SATURATES(Float8E4m3fnuz, 0x7f)
CGDEBUG_SATURATES(Float8E5m2fnuz, 0x7f)
CGDEBUG_SATURATES(Float4E2m1fnX2, 0x07)
#undef CGDEBUG_SATURATES

// How many of the values in a finite element are.
template <typename Type>
__device__ unsigned SaturatedIn(typename Type::Raw raw) {
  if constexpr (kHoldsTwo<Type>) {
    return ((raw & 7) == 7) + ((raw >> 4 & 7) == 7);
  } else if constexpr (Type::kFloating) {
    return (raw & 0x7f) >= kSaturatedFrom<Type>;
  } else {
    return raw >= 127 || raw <= -127;
  }
}

// Whether a vector of 16 elements has one of these bits.
__device__ inline bool HasByte(uint4 vector, std::uint8_t bits) {
  const std::uint32_t each = bits * 0x1010101u;
  return (__vcmpeq4(vector.x, each) | __vcmpeq4(vector.y, each) | __vcmpeq4(vector.z, each) |
          __vcmpeq4(vector.w, each)) != 0;
}

// The type of an element of `dtype`, whose bits are `Bits`.
template <layout::Dtype dtype, typename Bits>
struct ElementOf {
  using Type = Integer<Bits>;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat16, Bits> {
  using Type = Float16;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kBfloat16, Bits> {
  using Type = Bfloat16;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat32, Bits> {
  using Type = Float32;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat64, Bits> {
  using Type = Float64;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E4m3fn, Bits> {
  using Type = Float8E4m3fn;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E5m2, Bits> {
  using Type = Float8E5m2;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E4m3fnuz, Bits> {
  using Type = Float8E4m3fnuz;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E5m2fnuz, Bits> {
  using Type = Float8E5m2fnuz;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat8E8m0fnu, Bits> {
  using Type = Float8E8m0fnu;
};
template <typename Bits>
struct ElementOf<layout::Dtype::kFloat4E2m1fnX2, Bits> {
  using Type = Float4E2m1fnX2;
};

// The smallest and largest magnitude in a vector of 16 bytes. Bits of magnitudes sort as the
// magnitudes do, for every dtype.
template <typename Raw>
struct Extremes {
  Raw least;
  Raw most;

  __device__ static Extremes Of(uint4 vector, Raw sign) {
    if constexpr (sizeof(Raw) == 8) {
      const Raw a = (static_cast<Raw>(vector.y) << 32 | vector.x) & ~sign;
      const Raw b = (static_cast<Raw>(vector.w) << 32 | vector.z) & ~sign;
      return {a < b ? a : b, a < b ? b : a};
    } else {
      constexpr std::uint32_t kEach = sizeof(Raw) == 4 ? 1 : sizeof(Raw) == 2 ? 0x10001 : 0x1010101;
      const std::uint32_t keep = ~(kEach * sign);
      const std::uint32_t x = vector.x & keep, y = vector.y & keep, z = vector.z & keep,
                          w = vector.w & keep;
      std::uint32_t least = Min(Min(x, y), Min(z, w));
      std::uint32_t most = Max(Max(x, y), Max(z, w));
#pragma unroll
      for (int shift = 16; shift >= 8 * static_cast<int>(sizeof(Raw)); shift /= 2) {
        least = Min(least, least >> shift);
        most = Max(most, most >> shift);
      }
      return {static_cast<Raw>(least), static_cast<Raw>(most)};
    }
  }

 private:
  __device__ static std::uint32_t Min(std::uint32_t a, std::uint32_t b) {
    if constexpr (sizeof(Raw) == 4) return a < b ? a : b;
    return sizeof(Raw) == 2 ? __vminu2(a, b) : __vminu4(a, b);
  }
  __device__ static std::uint32_t Max(std::uint32_t a, std::uint32_t b) {
    if constexpr (sizeof(Raw) == 4) return a < b ? b : a;
    return sizeof(Raw) == 2 ? __vmaxu2(a, b) : __vmaxu4(a, b);
  }
};

// --- which kernel --------------------------------------------------------------------------------

// Kernel<Type>::Get() for the type of the elements; nullptr for no dtype.
template <template <typename> class Kernel>
const void* KernelForDtype(layout::Dtype dtype) {
  using layout::Dtype;
  switch (dtype) {
#define CGDEBUG_KERNEL(name, number, torch, text, short_name, bits, floating, ...) \
  case Dtype::k##name: {                                                           \
    using Type = typename ElementOf<Dtype::k##name, bits>::Type;                   \
    static_assert(Type::kFloating == floating);                                    \
    return Kernel<Type>::Get();                                                    \
  }
    CGDEBUG_DTYPES(CGDEBUG_KERNEL)
#undef CGDEBUG_KERNEL
    case Dtype::kInvalid:
      break;
  }
  return nullptr;
}

// Kernel<Unit>::Get() for units of 16, 8, 4, 2 or 1 bytes.
template <template <typename> class Kernel>
const void* KernelForUnit(int unit) {
  switch (unit) {
    case 16:
      return Kernel<uint4>::Get();
    case 8:
      return Kernel<std::uint64_t>::Get();
    case 4:
      return Kernel<std::uint32_t>::Get();
    case 2:
      return Kernel<std::uint16_t>::Get();
    default:
      return Kernel<std::uint8_t>::Get();
  }
}

}  // namespace cgdebug::capture
