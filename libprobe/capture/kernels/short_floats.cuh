// short_floats.cuh: statistics of 16 or 32 bytes of 16-bit or 8-bit floats, in float32.
//
// Additions in float64 would take longer than it takes to read elements this small. A chain of at
// most 8 additions in float32 is good to 2e-6, and so is the sum of up to 4 chains. Those sums are
// added up in float64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "libprobe/capture/kernels/element_types.cuh"

namespace cgdebug::capture {

// --- two at a time -----------------------------------------------------------------------------

// Types whose vectors of 16 bytes are added up as pairs of 16 bits. A pair of 8-bit floats is
// widened to a pair of float16, which holds each of them exactly as a normal number or zero. Those
// with one NaN, or with two values in a byte, are added one by one.
template <typename Type>
inline constexpr bool kIsShortFloat = Type::kFloating && sizeof(typename Type::Raw) <= 2 &&
                                      !kHasOneNan<Type> && !kHoldsTwo<Type>;

// The type of a pair's halves.
template <typename Type>
struct HalvesOf {
  using Half = Float16;
};
template <>
struct HalvesOf<Bfloat16> {
  using Half = Bfloat16;
};

__device__ inline float LowerHalf(std::uint32_t pair, Float16) {
  return HalfToFloat(static_cast<std::uint16_t>(pair));
}
__device__ inline float UpperHalf(std::uint32_t pair, Float16) {
  return HalfToFloat(static_cast<std::uint16_t>(pair >> 16));
}
__device__ inline float LowerHalf(std::uint32_t pair, Bfloat16) {
  return __uint_as_float(pair << 16);
}
__device__ inline float UpperHalf(std::uint32_t pair, Bfloat16) {
  return __uint_as_float(pair & 0xffff0000);
}

#if __CUDA_ARCH__ >= 800
__device__ inline std::uint32_t LeastPair(std::uint32_t a, std::uint32_t b, Float16) {
  asm("min.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ inline std::uint32_t MostPair(std::uint32_t a, std::uint32_t b, Float16) {
  asm("max.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ inline std::uint32_t LeastPair(std::uint32_t a, std::uint32_t b, Bfloat16) {
  asm("min.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ inline std::uint32_t MostPair(std::uint32_t a, std::uint32_t b, Bfloat16) {
  asm("max.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
#else
__device__ inline std::uint32_t JoinHalves(std::uint32_t lower, std::uint32_t upper) {
  return (lower & 0xffff) | (upper & 0xffff0000);
}
template <typename Half>
__device__ inline std::uint32_t LeastPair(std::uint32_t a, std::uint32_t b, Half half) {
  return JoinHalves(LowerHalf(b, half) < LowerHalf(a, half) ? b : a,
                    UpperHalf(b, half) < UpperHalf(a, half) ? b : a);
}
template <typename Half>
__device__ inline std::uint32_t MostPair(std::uint32_t a, std::uint32_t b, Half half) {
  return JoinHalves(LowerHalf(b, half) > LowerHalf(a, half) ? b : a,
                    UpperHalf(b, half) > UpperHalf(a, half) ? b : a);
}
#endif

// The first (0) or last (1) two 8-bit floats of `word` as float16. A NaN becomes a NaN.
__device__ inline std::uint32_t WidenTwo(std::uint32_t word, int which, Float8E5m2) {
  return __byte_perm(word, 0, which == 0 ? 0x1404 : 0x3424);
}
__device__ inline std::uint32_t WidenTwo(std::uint32_t word, int which, Float8E4m3fn) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t pair;
  const auto two = static_cast<std::uint16_t>(which == 0 ? word : word >> 16);
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(two));
  return pair;
#else
  const auto widen = [](std::uint32_t bits) -> std::uint32_t {
    if ((bits & 0x7f) == 0x7f) return 0x7fff;
    auto half = static_cast<std::uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7);
    // The exponents' biases differ by 8.
    asm("{.reg .b16 s; mov.b16 s, 0x5c00; mul.f16 %0, %0, s;}" : "+h"(half));
    return half;
  };
  const std::uint32_t two = word >> 16 * which;
  return widen(two & 0xff) | widen(two >> 8 & 0xff) << 16;
#endif
}

// The words of a vector of 16 bytes: each holds a pair of 16-bit floats, or four 8-bit floats.
struct Words {
  std::uint32_t words[4];
  __device__ explicit Words(uint4 vector) : words{vector.x, vector.y, vector.z, vector.w} {}
};

// How many halves of the pairs, from a magnitude of `bits` on, count.
template <int kCount>
__device__ inline std::uint32_t CountFrom(const std::uint32_t (&pairs)[kCount],
                                          std::uint32_t bits) {
  std::uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    // The sign's bit stays set where nothing is borrowed from it.
    count += __popc(((pairs[i] | 0x80008000) - bits * 0x10001) & 0x80008000);
  }
  return count;
}

// What the lower half of `bits`, the XOR of an even number of float16, is after each of them is
// widened to a float32. `zeros` of them are zeros, the others normal numbers. As in WidenHash.
__device__ inline std::uint32_t WidenHashOfHalves(std::uint32_t bits, std::uint32_t zeros) {
  constexpr std::uint32_t kBias = 0x38000000, kCarried = 0x78000000;
  return (bits >> 15 & 1) << 31 ^ (bits & 0x3fff) << 13 ^ ((bits >> 14 & 1) != 0 ? kCarried : 0) ^
         ((zeros & 1) != 0 ? kBias : 0);
}

// --- a few vectors -----------------------------------------------------------------------------

// Statistics of kVectors vectors of 16 bytes.
//
// The variance follows from the sum and the sum of squares, which are exact where the elements are
// so close to each other that their squares nearly cancel: a square of a bfloat16 has 16 bits, one
// of a float8 at most 8. The squares of a float16 have 22, so those are summed around an element.
template <typename Type, int kVectors>
struct VectorSums {
  using Half = typename HalvesOf<Type>::Half;
  static constexpr std::uint32_t kElements = kVectors * 16 / sizeof(typename Type::Raw);
  static constexpr bool kCentred = std::is_same_v<Type, Float16>;
  static constexpr bool kBytes = sizeof(typename Type::Raw) == 1;
  static constexpr int kChains = kBytes ? 4 : 2;

  std::uint32_t zero = 0, subnormal = 0;
  std::uint32_t least, most;  // pairs
  std::uint32_t hash = 0;     // XOR of the elements as float32
  float centre = 0;           // the first element; with kCentred
  float sum[kChains], l1[kChains], l2_squared[kChains];
  float sum_squares[2] = {};  // of x - centre, as `sum`; with kCentred

  __device__ explicit VectorSums(const uint4 (&vectors)[kVectors]) {
    if constexpr (kBytes) {
      AddBytes(vectors);
    } else {
      AddHalves(vectors);
    }
  }

  // Whether this can be used. If not, there is a NaN or Inf among the elements, a square left the
  // range of float32, or an element is subnormal as a float32, for which the hash is not right.
  __device__ bool Holds() const {
    const float squares = Total(l2_squared);
    const bool in_range = squares + (sum_squares[0] + sum_squares[1]) <= 0x1.fffffep127f;
    if constexpr (std::is_same_v<Half, Bfloat16>) {  // the others' squares are never that small
      const bool large_enough = (squares >= 0x1p-100f) | (Total(l1) == 0);
      return in_range & large_enough & (subnormal == 0);
    }
    return in_range;
  }

  // Adds the elements to sums of x - shift and of its squares.
  __device__ void AddMoved(double shift, double* moved_sum, double* moved_squares) const {
    const auto centred = static_cast<double>(Total(sum));
    const double by = (kCentred ? static_cast<double>(centre) : 0.0) - shift;
    const double moved = centred + static_cast<double>(kElements) * by;
    const float squares = kCentred ? sum_squares[0] + sum_squares[1] : Total(l2_squared);
    *moved_sum += moved;
    *moved_squares += static_cast<double>(squares) + by * (centred + moved);
  }

  // Whether `hash` is not right yet: a subnormal float8_e5m2 is no normal number as a float16
  // either.
  __device__ bool HashLacksSubnormals() const {
    return std::is_same_v<Type, Float8E5m2> && subnormal != 0;
  }
  // What to XOR it with then. That depends on which of the three magnitudes are there an odd number
  // of times.
  __device__ std::uint32_t HashOfSubnormals(const uint4 (&vectors)[kVectors]) const {
    std::uint32_t bits = 0;  // XOR of the magnitudes
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Words all(vectors[v]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t normal = BytesFrom(all.words[i], Type::kMantissa + 1u);
        bits ^= all.words[i] & Type::kMantissa * kEachByte & ~(normal >> 7 | normal >> 6);
      }
    }
    bits ^= bits >> 16;
    bits ^= bits >> 8;
    const std::uint32_t one = bits >> 1 ^ subnormal, two = bits ^ subnormal, three = one ^ bits;
    return ((one & 1) != 0 ? 0x0fa00000 : 0) ^ ((two & 1) != 0 ? 0x00400000 : 0) ^
           ((three & 1) != 0 ? 0x00200000 : 0);
  }

  // Whether an element may have the type's largest magnitude.
  __device__ bool MayBeSaturated() const {
    constexpr std::uint32_t kLargest = 0x10001 * LargestAsHalf();
    return (__vcmpeq2(most, kLargest) | __vcmpeq2(least, kLargest | 0x80008000)) != 0;
  }
  // How many have it.
  __device__ static std::uint32_t CountSaturated(const uint4 (&vectors)[kVectors]) {
    std::uint32_t count = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Words all(vectors[v]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        count += __popc(BytesFrom(all.words[i], kSaturatedFrom<Type>));
      }
    }
    return count;
  }

  __device__ static float Total(const float (&chains)[kChains]) {
    const float total = chains[0] + chains[1];
    if constexpr (kChains == 4) return total + (chains[2] + chains[3]);
    return total;
  }

 private:
  static constexpr bool kHashesPairs = std::is_same_v<Half, Bfloat16>;

  // Of the 8-bit types that are added here.
  static constexpr std::uint32_t LargestAsHalf() {
    return std::is_same_v<Type, Float8E5m2> ? 0x7b00 : 0x5f00;
  }

  // Elements of 16 bits.
  __device__ void AddHalves(const uint4 (&vectors)[kVectors]) {
    constexpr std::uint32_t kSmallestNormal = Type::kMantissa + 1u;
    std::uint32_t smallest[1];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Words all(vectors[v]);
      if (v == 0) {
        least = most = all.words[0];
        smallest[0] = all.words[0] & 0x7fff7fff;
        if constexpr (kCentred) centre = LowerHalf(all.words[0], Half{});
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t pair = all.words[i];
        least = LeastPair(least, pair, Half{});
        most = MostPair(most, pair, Half{});
        smallest[0] = LeastPair(smallest[0], pair & 0x7fff7fff, Half{});
        const float lower = LowerHalf(pair, Half{}), upper = UpperHalf(pair, Half{});
        const bool first = v == 0 && i == 0;
        AddValue(lower, 0, first);
        AddValue(upper, 1, first);
        hash ^= kHashesPairs ? pair : __float_as_uint(lower) ^ __float_as_uint(upper);
      }
    }
    if constexpr (kHashesPairs) hash = hash << 16 ^ (hash & 0xffff0000);
    if (CountFrom(smallest, kSmallestNormal) == 2) return;
    std::uint32_t nonzero = 0, normal = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Words all(vectors[v]);
      nonzero += CountFrom(all.words, 1);
      normal += CountFrom(all.words, kSmallestNormal);
    }
    zero = kElements - nonzero;
    subnormal = nonzero - normal;
  }

  // Elements of 8 bits: four at a time until they are widened.
  __device__ void AddBytes(const uint4 (&vectors)[kVectors]) {
    std::uint32_t nonzero = 0, normal = 0;  // times 128
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Words all(vectors[v]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t four = all.words[i];
        nonzero = __dp4a(BytesFrom(four, 1), kEachByte, nonzero);
        normal = __dp4a(BytesFrom(four, Type::kMantissa + 1u), kEachByte, normal);
        const std::uint32_t two[2] = {WidenTwo(four, 0, Type{}), WidenTwo(four, 1, Type{})};
        hash ^= two[0] ^ two[1];
        const bool first = v == 0 && i == 0;
        if (first) least = most = two[0];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          least = LeastPair(least, two[k], Half{});
          most = MostPair(most, two[k], Half{});
          AddValue(LowerHalf(two[k], Half{}), 2 * k, first);
          AddValue(UpperHalf(two[k], Half{}), 2 * k + 1, first);
        }
      }
    }
    zero = kElements - nonzero / 128;
    subnormal = (nonzero - normal) / 128;
    hash = WidenHashOfHalves(hash ^ hash >> 16, zero);
  }

  static constexpr std::uint32_t kEachByte = 0x01010101;

  // The upper bit of each byte whose magnitude is at least `magnitude`.
  __device__ static std::uint32_t BytesFrom(std::uint32_t four, std::uint32_t magnitude) {
    return ((four & 0x7f * kEachByte) + (0x80 - magnitude) * kEachByte) & 0x80 * kEachByte;
  }

  __device__ void AddValue(float value, int chain, bool first) {
    if constexpr (kCentred) {
      const float centred = value - centre;
      sum[chain] = first ? centred : sum[chain] + centred;
      sum_squares[chain] =
          first ? centred * centred : __fmaf_rn(centred, centred, sum_squares[chain]);
    } else {
      sum[chain] = first ? value : sum[chain] + value;
    }
    l1[chain] = first ? fabsf(value) : l1[chain] + fabsf(value);
    l2_squared[chain] = first ? value * value : __fmaf_rn(value, value, l2_squared[chain]);
  }
};

// What the XOR of an even number of float32 is after each of them is widened to a float64. `zeros`
// of them are zeros, the others normal numbers. Widening moves bits, except for the exponent's
// bias.
__device__ inline std::uint64_t WidenHash(std::uint32_t bits, std::uint32_t zeros) {
  constexpr std::uint64_t kBias = 0x3800000000000000;  // unless it is carried to the upper bit
  constexpr std::uint64_t kCarried = 0x7800000000000000;
  return std::uint64_t{bits >> 31} << 63 ^ std::uint64_t{bits & 0x3fffffff} << 29 ^
         ((bits >> 30 & 1) != 0 ? kCarried : 0) ^ ((zeros & 1) != 0 ? kBias : 0);
}

}  // namespace cgdebug::capture
