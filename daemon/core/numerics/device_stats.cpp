#include "daemon/core/numerics/device_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cgdebug::numerics {
namespace {

// Brings `abs_max` near 1 if squares of such elements, and sums of them, may leave the range.
int ScaleOf(double abs_max) {
  if (!(abs_max > 0) || (abs_max < 0x1p480 && abs_max > 0x1p-480)) return 0;
  return std::clamp(-std::ilogb(abs_max), -1022, 1022);
}

}  // namespace

Stats FromDevice(const layout::DeviceStats& device) {
  Stats stats;
  stats.count = device.count;
  stats.nan = device.nan;
  stats.pos_inf = device.pos_inf;
  stats.neg_inf = device.neg_inf;
  stats.zero = device.zero;
  stats.subnormal = layout::SubnormalOf(device);
  stats.has_saturated = (device.flags & layout::kStatsHasSaturated) != 0;
  stats.saturated = layout::SaturatedOf(device);
  stats.l1 = device.l1;
  const auto scaled_by =
      static_cast<int>(device.flags >> layout::kStatsScaleShift & layout::kStatsScaleMask);
  const int scale = scaled_by == 0 ? 0 : scaled_by - layout::kStatsScaleBias;
  stats.l2 = std::ldexp(std::sqrt(device.l2_squared), -scale);
  stats.has_hash = (device.flags & layout::kStatsHasHash) != 0;
  stats.hash = stats.has_hash ? device.hash : 0;
  stats.has_ordered_hash = (device.flags & layout::kStatsHasOrderedHash) != 0;
  if (stats.has_ordered_hash) stats.ordered_hash = device.flags >> layout::kStatsOrderedHashShift;
  stats.has_nonfinite = (device.flags & layout::kStatsHasNonfinite) != 0;
  if (stats.has_nonfinite) {
    stats.first_nonfinite = device.first_nonfinite;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::uint64_t kind = device.flags >> layout::kStatsFirstKindShift & 3;
    stats.first_nonfinite_value = kind == 0   ? std::numeric_limits<double>::quiet_NaN()
                                  : kind == 1 ? kInfinity
                                              : -kInfinity;
  }
  const auto finite = static_cast<double>(stats.finite());
  if (finite == 0) return stats;
  stats.min = device.min;
  stats.max = device.max;
  stats.abs_max = std::max(std::fabs(device.min), std::fabs(device.max));
  const double mean = device.sum / finite;  // of x - shift
  // What a GPU has not scaled: squares of such numbers leave the range of a double, and so may
  // their sum.
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  stats.mean =
      std::isfinite(mean) ? std::clamp(device.shift + mean, stats.min, stats.max) : kUnknown;
  if (scale == 0 && ScaleOf(stats.abs_max) != 0) {
    stats.l2 = stats.rms = kUnknown;
    stats.std = stats.min == stats.max ? 0 : kUnknown;
    return stats;
  }
  stats.rms = std::ldexp(std::sqrt(device.l2_squared / finite), -scale);
  stats.std =
      std::ldexp(std::sqrt(std::max(device.sum_squares / finite - mean * mean, 0.0)), -scale);
  return stats;
}

layout::DeviceStats ToDevice(const Stats& stats) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  layout::DeviceStats device = {};
  device.count = stats.count;
  device.nan = stats.nan;
  device.pos_inf = stats.pos_inf;
  device.neg_inf = stats.neg_inf;
  device.zero = stats.zero;
  device.subnormal = stats.subnormal;
  device.min = kInfinity;
  device.max = -kInfinity;
  device.hash = stats.hash;
  device.flags = stats.has_hash ? layout::kStatsHasHash : 0;
  if (stats.has_saturated && stats.count >> layout::kStatsSaturatedShift == 0) {
    device.flags |= layout::kStatsHasSaturated;
    device.subnormal |= stats.saturated << layout::kStatsSaturatedShift;
  }
  if (stats.has_ordered_hash) {
    device.flags |= layout::kStatsHasOrderedHash | stats.ordered_hash
                                                       << layout::kStatsOrderedHashShift;
  }
  if (stats.has_nonfinite) {
    const double value = stats.first_nonfinite_value;
    const std::uint64_t kind = std::isnan(value) ? 0 : value > 0 ? 1 : 2;
    device.first_nonfinite = stats.first_nonfinite;
    device.flags |= layout::kStatsHasNonfinite | kind << layout::kStatsFirstKindShift;
  }
  const auto finite = static_cast<double>(stats.finite());
  if (finite == 0) return device;
  device.min = stats.min;
  device.max = stats.max;
  device.shift = stats.mean;
  device.l1 = stats.l1;
  const int scale = ScaleOf(stats.abs_max);
  if (scale != 0) {
    const auto biased = static_cast<std::uint64_t>(scale + layout::kStatsScaleBias);
    device.flags |= biased << layout::kStatsScaleShift;
  }
  const double std = std::ldexp(stats.std, scale);
  const double l2 = std::ldexp(stats.l2, scale);
  device.sum_squares = std * std * finite;
  device.l2_squared = l2 * l2;
  return device;
}

}  // namespace cgdebug::numerics
