// device_stats.h: the 128 bytes that leave the GPU for a tensor whose values stay there.
#pragma once

#include <cstdint>
#include <type_traits>

#include "proto/layout/ring_layout.h"

namespace cgdebug::layout {

inline constexpr std::uint64_t kStatsHasHash = 1u << 0;
inline constexpr std::uint64_t kStatsHasNonfinite = 1u << 1;
inline constexpr std::uint64_t kStatsHasOrderedHash = 1u << 2;
// `subnormal` has, in its upper 32 bits, how many elements have the type's largest magnitude. Only
// types of CountsSaturated() have it, and no tensor of 2^32 values or more.
inline constexpr std::uint64_t kStatsHasSaturated = 1u << 3;
inline constexpr int kStatsSaturatedShift = 32;
// From this bit of `flags` on: the value at first_nonfinite, 0 = NaN, 1 = +Inf, 2 = -Inf.
inline constexpr int kStatsFirstKindShift = 8;
// From this bit on: the ordered hash (ordered_hash.h).
inline constexpr int kStatsOrderedHashShift = 32;

// From this bit of `flags` on, for 12 bits: 2048 + the power of two by which the CPU multiplied the
// elements before it took squares of them, which would have left the range; 0 = by none.
inline constexpr int kStatsScaleShift = 16;
inline constexpr std::uint64_t kStatsScaleMask = 0xfff;
inline constexpr int kStatsScaleBias = 2048;

// The fields from the minimum to the sums cover the finite elements, in double. `sum` and
// `sum_squares` are of x - shift, so that a large mean does not swamp the variance. Sums of 16-bit
// and 8-bit floats are good to 2e-6.
struct DeviceStats {
  std::uint64_t count;
  std::uint64_t nan;
  std::uint64_t pos_inf;
  std::uint64_t neg_inf;
  std::uint64_t zero;
  std::uint64_t subnormal;  // SubnormalOf()
  double min;               // +Inf when no element is finite
  double max;               // -Inf when no element is finite
  double shift;
  double sum;
  double sum_squares;
  double l1;                      // sum of |x|: DebugMode's "norm" hash
  double l2_squared;              // sum of x * x
  std::uint64_t hash;             // XOR of the elements widened to 64 bits, as torch.hash_tensor
  std::uint64_t first_nonfinite;  // flat index
  std::uint64_t flags;            // kStatsHas..., and what is above
};
constexpr std::uint64_t SubnormalOf(const DeviceStats& stats) {
  const bool is_shared = (stats.flags & kStatsHasSaturated) != 0;
  return is_shared ? stats.subnormal & 0xffffffff : stats.subnormal;
}
constexpr std::uint64_t SaturatedOf(const DeviceStats& stats) {
  return (stats.flags & kStatsHasSaturated) != 0 ? stats.subnormal >> kStatsSaturatedShift : 0;
}
static_assert(sizeof(DeviceStats) == kStatsBytes);
static_assert(std::is_trivially_copyable_v<DeviceStats>);

}  // namespace cgdebug::layout
