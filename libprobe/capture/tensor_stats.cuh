// tensor_stats.cuh: statistics of a tensor in one pass, on the GPU.
//
// Every element is widened to double, which is exact but for int64; sums are of doubles around a
// shift, one element of the tensor, so that the variance does not drown in a large mean (Chan,
// Golub, LeVeque, "Algorithms for computing the sample variance", 1983). Parts that share a shift
// add up, in any order.
#pragma once

#include <cstdint>

#include "proto/layout/device_stats.h"

namespace cgdebug::capture {

// --- element types -----------------------------------------------------------------------------

__device__ inline float HalfToFloat(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// A floating type by its bits: which are exponent and mantissa, and the value.
struct Float16 {
  using Raw = std::uint16_t;
  using Value = float;
  static constexpr bool kFloating = true;
  static constexpr Raw kExponent = 0x7c00, kMantissa = 0x03ff, kSign = 0x8000;
  __device__ static float Get(Raw raw) { return HalfToFloat(raw); }
  __device__ static bool NonFinite(Raw raw) { return (raw & kExponent) == kExponent; }
  __device__ static bool IsNan(Raw raw) { return (raw & kMantissa) != 0; }
  __device__ static std::uint64_t NanMantissa(Raw raw) {
    return static_cast<std::uint64_t>(raw & kMantissa) << 42;
  }
};
struct Bfloat16 {
  using Raw = std::uint16_t;
  using Value = float;
  static constexpr bool kFloating = true;
  static constexpr Raw kExponent = 0x7f80, kMantissa = 0x007f, kSign = 0x8000;
  __device__ static float Get(Raw raw) { return __uint_as_float(std::uint32_t{raw} << 16); }
  __device__ static bool NonFinite(Raw raw) { return (raw & kExponent) == kExponent; }
  __device__ static bool IsNan(Raw raw) { return (raw & kMantissa) != 0; }
  __device__ static std::uint64_t NanMantissa(Raw raw) {
    return static_cast<std::uint64_t>(raw & kMantissa) << 45;
  }
};
struct Float32 {
  using Raw = std::uint32_t;
  using Value = float;
  static constexpr bool kFloating = true;
  static constexpr Raw kExponent = 0x7f800000, kMantissa = 0x007fffff, kSign = 0x80000000;
  __device__ static float Get(Raw raw) { return __uint_as_float(raw); }
  __device__ static bool NonFinite(Raw raw) { return (raw & kExponent) == kExponent; }
  __device__ static bool IsNan(Raw raw) { return (raw & kMantissa) != 0; }
  __device__ static std::uint64_t NanMantissa(Raw raw) {
    return static_cast<std::uint64_t>(raw & kMantissa) << 29;
  }
};
struct Float64 {
  using Raw = std::uint64_t;
  using Value = double;
  static constexpr bool kFloating = true;
  static constexpr Raw kExponent = 0x7ff0000000000000, kMantissa = 0x000fffffffffffff,
                       kSign = 0x8000000000000000;
  __device__ static double Get(Raw raw) {
    return __longlong_as_double(static_cast<long long>(raw));
  }
  __device__ static bool NonFinite(Raw raw) { return (raw & kExponent) == kExponent; }
  __device__ static bool IsNan(Raw raw) { return (raw & kMantissa) != 0; }
  __device__ static std::uint64_t NanMantissa(Raw raw) { return raw & kMantissa; }
};
struct Float8E5m2 {  // the upper half of a float16
  using Raw = std::uint8_t;
  using Value = float;
  static constexpr bool kFloating = true;
  static constexpr Raw kExponent = 0x7c, kMantissa = 0x03, kSign = 0x80;
  __device__ static float Get(Raw raw) { return HalfToFloat(static_cast<std::uint16_t>(raw << 8)); }
  __device__ static bool NonFinite(Raw raw) { return (raw & kExponent) == kExponent; }
  __device__ static bool IsNan(Raw raw) { return (raw & kMantissa) != 0; }
  __device__ static std::uint64_t NanMantissa(Raw raw) {
    return static_cast<std::uint64_t>(raw & kMantissa) << 50;
  }
};
struct Float8E4m3fn {  // no infinity; one NaN of either sign
  using Raw = std::uint8_t;
  using Value = float;
  static constexpr bool kFloating = true;
  static constexpr Raw kExponent = 0x78, kMantissa = 0x07, kSign = 0x80;
  __device__ static float Get(Raw raw) {
    const float magnitude = HalfToFloat(static_cast<std::uint16_t>((raw & 0x7f) << 7)) * 256.0f;
    return (raw & kSign) != 0 ? -magnitude : magnitude;
  }
  __device__ static bool NonFinite(Raw raw) { return (raw & 0x7f) == 0x7f; }
  __device__ static bool IsNan(Raw) { return true; }
  __device__ static std::uint64_t NanMantissa(Raw raw) {
    return static_cast<std::uint64_t>(raw & kMantissa) << 49;
  }
};
template <typename T>
struct Integer {
  using Raw = T;
  using Value = double;
  static constexpr bool kFloating = false;
};

// --- one thread's part -------------------------------------------------------------------------

template <typename Type>
struct Part {
  using Raw = typename Type::Raw;
  using Value = typename Type::Value;

  Value min;
  Value max;
  double shift;
  double sum = 0, sum_squares = 0, l1 = 0, l2_squared = 0;
  std::uint64_t hash = 0;
  std::uint64_t first = ~std::uint64_t{0};  // index of the first non-finite element * 4 + its kind
  std::uint32_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, subnormal = 0;

  __device__ explicit Part(double the_shift) : shift(the_shift) {
    max = -static_cast<Value>(__longlong_as_double(0x7ff0000000000000));
    min = -max;
  }

  __device__ void Add(Raw raw, std::uint64_t index) {
    if constexpr (Type::kFloating) {
      const Raw exponent = raw & Type::kExponent;
      if (exponent == 0) {
        if ((raw & Type::kMantissa) == 0) {
          ++zero;
        } else {
          ++subnormal;
        }
      } else if (Type::NonFinite(raw)) {
        AddNonFinite(raw, index);
        return;
      }
      const Value value = Type::Get(raw);
      min = value < min ? value : min;
      max = value > max ? value : max;
      AddDouble(static_cast<double>(value));
      hash ^= static_cast<std::uint64_t>(__double_as_longlong(static_cast<double>(value)));
    } else {
      if (raw == 0) ++zero;
      const double value = static_cast<double>(raw);
      min = value < min ? value : min;
      max = value > max ? value : max;
      AddDouble(value);
      hash ^= static_cast<std::uint64_t>(static_cast<std::int64_t>(raw));
    }
  }

  __device__ void AddDouble(double value) {
    const double centred = value - shift;
    sum += centred;
    sum_squares += centred * centred;
    l1 += fabs(value);
    l2_squared += value * value;
  }

  __device__ void AddNonFinite(Raw raw, std::uint64_t index) {
    if constexpr (Type::kFloating) {
      const bool negative = (raw & Type::kSign) != 0;
      const std::uint64_t kind = Type::IsNan(raw) ? 0 : negative ? 2 : 1;
      if (kind == 0) ++nan;
      if (kind == 1) ++pos_inf;
      if (kind == 2) ++neg_inf;
      const std::uint64_t key = index * 4 + kind;
      first = key < first ? key : first;
      // Widened by hand: a conversion on the GPU forgets what a NaN carries. A signalling NaN
      // becomes quiet, as on the CPU.
      std::uint64_t wide = 0x7ff0000000000000;
      if (kind == 0) wide |= Type::NanMantissa(raw) | (sizeof(Raw) < 8 ? 0x0008000000000000 : 0);
      hash ^= wide | (negative ? 0x8000000000000000 : 0);
    }
  }

  // Elements start..count by `stride`, 16 bytes at a time where the tensor is aligned to that.
  __device__ void AddAll(const std::byte* from, std::uint64_t count, bool vectors,
                         std::uint64_t start, std::uint64_t stride) {
    constexpr std::uint64_t kPerVector = 16 / sizeof(Raw);
    const std::uint64_t vector_count = vectors ? count / kPerVector : 0;
    const auto* wide = reinterpret_cast<const uint4*>(from);
#pragma unroll 4
    for (std::uint64_t i = start; i < vector_count; i += stride) {
      union {
        uint4 vector;
        Raw raw[kPerVector];
      } pack;
      pack.vector = wide[i];
#pragma unroll
      for (std::uint64_t k = 0; k < kPerVector; ++k) Add(pack.raw[k], i * kPerVector + k);
    }
    const auto* raw = reinterpret_cast<const Raw*>(from);
    for (std::uint64_t i = vector_count * kPerVector + start; i < count; i += stride) {
      Add(raw[i], i);
    }
  }

  __device__ layout::DeviceStats Result(std::uint64_t count) const {
    layout::DeviceStats stats;
    stats.count = count;
    stats.nan = nan;
    stats.pos_inf = pos_inf;
    stats.neg_inf = neg_inf;
    stats.zero = zero;
    stats.subnormal = subnormal;
    stats.min = static_cast<double>(min);
    stats.max = static_cast<double>(max);
    stats.shift = shift;
    stats.sum = sum;
    stats.sum_squares = sum_squares;
    stats.l1 = l1;
    stats.l2_squared = l2_squared;
    stats.hash = hash;
    stats.first_nonfinite = first;
    stats.flags = 0;
    return stats;
  }
};

// The first element that is finite, of the first few: any number will do, and all parts must take
// the same one.
template <typename Type>
__device__ double ShiftOf(const std::byte* from, std::uint64_t count) {
  if (count == 0) return 0;
  const auto raw = *reinterpret_cast<const typename Type::Raw*>(from);
  if constexpr (Type::kFloating) {
    return Type::NonFinite(raw) ? 0 : static_cast<double>(Type::Get(raw));
  } else {
    return static_cast<double>(raw);
  }
}

// --- parts added up ----------------------------------------------------------------------------

// While parts are being added, first_nonfinite holds index * 4 + kind, all ones for none.
__device__ inline void AddPart(layout::DeviceStats* into, const layout::DeviceStats& part) {
  into->nan += part.nan;
  into->pos_inf += part.pos_inf;
  into->neg_inf += part.neg_inf;
  into->zero += part.zero;
  into->subnormal += part.subnormal;
  into->min = part.min < into->min ? part.min : into->min;
  into->max = part.max > into->max ? part.max : into->max;
  into->sum += part.sum;
  into->sum_squares += part.sum_squares;
  into->l1 += part.l1;
  into->l2_squared += part.l2_squared;
  into->hash ^= part.hash;
  into->first_nonfinite =
      part.first_nonfinite < into->first_nonfinite ? part.first_nonfinite : into->first_nonfinite;
}

// A part of no elements, with the shift and the count of the others.
__device__ inline void Empty(layout::DeviceStats* part) {
  part->nan = part->pos_inf = part->neg_inf = part->zero = part->subnormal = part->hash = 0;
  part->max = -__longlong_as_double(0x7ff0000000000000);
  part->min = -part->max;
  part->sum = part->sum_squares = part->l1 = part->l2_squared = 0;
  part->first_nonfinite = ~std::uint64_t{0};
}

template <typename T>
__device__ T FromLane(T value, int offset) {
  static_assert(sizeof(T) == 8);
  return __shfl_down_sync(0xffffffffu, value, offset);
}

__device__ inline layout::DeviceStats FromLane(const layout::DeviceStats& stats, int offset) {
  layout::DeviceStats other = stats;
  other.nan = FromLane(stats.nan, offset);
  other.pos_inf = FromLane(stats.pos_inf, offset);
  other.neg_inf = FromLane(stats.neg_inf, offset);
  other.zero = FromLane(stats.zero, offset);
  other.subnormal = FromLane(stats.subnormal, offset);
  other.min = FromLane(stats.min, offset);
  other.max = FromLane(stats.max, offset);
  other.sum = FromLane(stats.sum, offset);
  other.sum_squares = FromLane(stats.sum_squares, offset);
  other.l1 = FromLane(stats.l1, offset);
  other.l2_squared = FromLane(stats.l2_squared, offset);
  other.hash = FromLane(stats.hash, offset);
  other.first_nonfinite = FromLane(stats.first_nonfinite, offset);
  return other;
}

// Every thread of the block calls it; thread 0 gets the sum. `shared` has one place a warp.
__device__ inline layout::DeviceStats ReduceInBlock(layout::DeviceStats mine,
                                                    layout::DeviceStats* shared) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  for (int offset = 16; offset > 0; offset /= 2) AddPart(&mine, FromLane(mine, offset));
  __syncthreads();
  if (lane == 0) shared[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    const unsigned warps = blockDim.x / 32;
    layout::DeviceStats total = shared[lane < warps ? lane : 0];
    if (lane >= warps) Empty(&total);
    for (int offset = 16; offset > 0; offset /= 2) AddPart(&total, FromLane(total, offset));
    mine = total;
  }
  return mine;
}

// What leaves the GPU, of the sum of all parts.
__device__ inline void Close(layout::DeviceStats* stats, bool hash) {
  const std::uint64_t key = stats->first_nonfinite;
  stats->flags = hash ? layout::kStatsHasHash : 0;
  if (!hash) stats->hash = 0;
  stats->first_nonfinite = 0;
  if (key == ~std::uint64_t{0}) return;
  stats->flags |= layout::kStatsHasNonfinite | (key & 3) << layout::kStatsFirstKindShift;
  stats->first_nonfinite = key / 4;
}

}  // namespace cgdebug::capture
