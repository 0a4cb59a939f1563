#include "daemon/core/numerics/device_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cgdebug::numerics {

Stats FromDevice(const layout::DeviceStats& device) {
  Stats stats;
  stats.count = device.count;
  stats.nan = device.nan;
  stats.pos_inf = device.pos_inf;
  stats.neg_inf = device.neg_inf;
  stats.zero = device.zero;
  stats.subnormal = device.subnormal;
  stats.l1 = device.l1;
  stats.l2 = std::sqrt(device.l2_squared);
  stats.has_hash = (device.flags & layout::kStatsHasHash) != 0;
  stats.hash = stats.has_hash ? device.hash : 0;
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
  stats.mean = device.shift + mean;
  stats.rms = std::sqrt(device.l2_squared / finite);
  stats.std = std::sqrt(std::max(device.sum_squares / finite - mean * mean, 0.0));
  return stats;
}

}  // namespace cgdebug::numerics
