#include "libprobe/host_stats.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace cgdebug {
namespace {

using layout::Dtype;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A floating type by its bits: sign, exponent, mantissa.
template <Dtype dtype, typename RawBits>
struct Element {
  using Raw = RawBits;
  static constexpr bool kFloating = layout::FindDtype(dtype)->is_floating;
  static constexpr int kMantissaBits = dtype == Dtype::kFloat16        ? 10
                                       : dtype == Dtype::kBfloat16     ? 7
                                       : dtype == Dtype::kFloat32      ? 23
                                       : dtype == Dtype::kFloat64      ? 52
                                       : dtype == Dtype::kFloat8E4m3fn ? 3
                                                                       : 2;
  static constexpr int kExponentBits = 8 * static_cast<int>(sizeof(Raw)) - 1 - kMantissaBits;
  static constexpr Raw kSign = static_cast<Raw>(Raw{1} << (8 * sizeof(Raw) - 1));
  static constexpr Raw kMantissa = static_cast<Raw>((std::uint64_t{1} << kMantissaBits) - 1);
  static constexpr Raw kExponent = static_cast<Raw>(kSign - 1 - kMantissa);
  // float8_e4m3fn has no infinity, and one NaN of either sign.
  static constexpr bool kHasInfinity = dtype != Dtype::kFloat8E4m3fn;

  static bool NonFinite(Raw raw) {
    if (!kHasInfinity) return (raw & (kSign - 1)) == kSign - 1;
    return (raw & kExponent) == kExponent;
  }
  static bool IsNan(Raw raw) { return !kHasInfinity || (raw & kMantissa) != 0; }

  // The bits of the float64 with this value, also for NaN and Inf. A NaN becomes quiet, as if the
  // CPU had converted it.
  static std::uint64_t Widen(Raw raw) {
    constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
    const std::uint64_t sign = (raw & kSign) != 0 ? std::uint64_t{1} << 63 : 0;
    const std::uint64_t mantissa = raw & kMantissa;
    const std::uint64_t shifted = mantissa << (52 - kMantissaBits);
    const std::uint64_t exponent = static_cast<std::uint64_t>(raw & kExponent) >> kMantissaBits;
    if (NonFinite(raw)) {
      const bool becomes_quiet = sizeof(Raw) < 8 && IsNan(raw);
      return sign | 0x7ff0000000000000 | shifted | (becomes_quiet ? 0x0008000000000000 : 0);
    }
    if (sizeof(Raw) == 8) return raw;
    if (exponent == 0) {
      const double value = std::ldexp(static_cast<double>(mantissa), 1 - kBias - kMantissaBits);
      return sign | std::bit_cast<std::uint64_t>(value);
    }
    return sign | (exponent + 1023 - kBias) << 52 | shifted;
  }
};

template <typename E>
layout::DeviceStats Compute(const void* data, std::uint64_t count) {
  using Raw = typename E::Raw;
  const auto* bytes = static_cast<const std::byte*>(data);
  layout::DeviceStats stats = {};
  stats.count = count;
  stats.min = kInfinity;
  stats.max = -kInfinity;
  stats.flags = layout::kStatsHasHash;
  for (std::uint64_t i = 0; i < count; ++i) {
    Raw raw;
    std::memcpy(&raw, bytes + i * sizeof(raw), sizeof(raw));
    double value = 0;
    if constexpr (E::kFloating) {
      const std::uint64_t wide = E::Widen(raw);
      stats.hash ^= wide;
      if (E::NonFinite(raw)) {
        const bool negative = (raw & E::kSign) != 0;
        const std::uint64_t kind = E::IsNan(raw) ? 0 : negative ? 2 : 1;
        ++(kind == 0 ? stats.nan : kind == 1 ? stats.pos_inf : stats.neg_inf);
        if ((stats.flags & layout::kStatsHasNonfinite) == 0) {
          stats.flags |= layout::kStatsHasNonfinite | kind << layout::kStatsFirstKindShift;
          stats.first_nonfinite = i;
        }
        continue;
      }
      const Raw magnitude = raw & static_cast<Raw>(~E::kSign);
      stats.zero += magnitude == 0;
      stats.subnormal += magnitude != 0 && magnitude <= E::kMantissa;
      value = std::bit_cast<double>(wide);
    } else {
      stats.hash ^= static_cast<std::uint64_t>(static_cast<std::int64_t>(raw));
      stats.zero += raw == 0;
      value = static_cast<double>(raw);
    }
    if (i == 0) stats.shift = value;
    if (value < stats.min) stats.min = value;
    if (value > stats.max) stats.max = value;
    const double centred = value - stats.shift;
    stats.sum += centred;
    stats.sum_squares += centred * centred;
    stats.l1 += std::fabs(value);
    stats.l2_squared += value * value;
  }
  return stats;
}

}  // namespace

layout::DeviceStats ComputeHostStats(const void* data, Dtype dtype, std::uint64_t count) {
  switch (dtype) {
#define CGDEBUG_COMPUTE(name, number, torch, text, short_name, bits, ...) \
  case Dtype::k##name:                                                    \
    return Compute<Element<Dtype::k##name, bits>>(data, count);
    CGDEBUG_DTYPES(CGDEBUG_COMPUTE)
#undef CGDEBUG_COMPUTE
    case Dtype::kInvalid:
      break;
  }
  return {};
}

}  // namespace cgdebug
