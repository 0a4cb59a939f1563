#include "daemon/core/numerics/stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "daemon/core/numerics/float4_values.h"
#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/numerics/kernels/moments.h"
#include "daemon/core/numerics/kernels/ordered_hash_kernel.h"
#include "daemon/core/numerics/kernels/ordered_key.h"
#include "daemon/core/numerics/kernels/stats_kernel.h"
#include "proto/layout/ordered_hash.h"

namespace cgdebug::numerics {
namespace {

// Small enough for the first-level cache and for counting in 16 bits.
constexpr std::size_t kBlock = 2048;
constexpr std::size_t kLanes = 8;

template <typename T>
struct Extent {
  using Key = typename OrderedKey<T>::Key;
  Key min = std::numeric_limits<Key>::max();
  Key max = std::numeric_limits<Key>::min();
};

template <typename T>
std::size_t LoadBlock(const TensorView& view, std::uint64_t start, T* block) {
  const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, view.count() - start));
  std::memcpy(block, view.data.data() + start * sizeof(T), size * sizeof(T));
  return size;
}

template <typename T>
void ToKeys(const T* block, std::size_t size, typename OrderedKey<T>::Key* keys) {
  for (std::size_t i = 0; i < size; ++i) keys[i] = OrderedKey<T>::FromElement(block[i]);
}

// Adds one block to `stats` and `extent`; returns how many of its elements are not finite.
template <typename T>
std::size_t CountBlock(const typename OrderedKey<T>::Key* keys, std::size_t size, Stats* stats,
                       Extent<T>* extent) {
  using K = OrderedKey<T>;
  using Key = typename K::Key;
  Key low = extent->min, high = extent->max, zero = 0;
  if constexpr (!K::kIsFloating) {
    for (std::size_t i = 0; i < size; ++i) {
      low = std::min(low, keys[i]);
      high = std::max(high, keys[i]);
      zero = static_cast<Key>(zero + (keys[i] == 0));
    }
    *extent = {low, high};
    stats->zero += static_cast<std::uint64_t>(zero);
    return 0;
  } else {
    // Loops of few steps and no short cuts, each of which the compiler turns into vectors.
    constexpr Key kLow = K::kLowestFinite, kHigh = K::kHighestFinite;
    constexpr Key kTiny = K::kMinNormal, kNegTiny = static_cast<Key>(-1 - K::kMinNormal);
    Key above = 0, below = 0, pos_inf = 0, neg_inf = 0, tiny = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const Key key = keys[i];
      above = static_cast<Key>(above + (key > kHigh));
      below = static_cast<Key>(below + (key < kLow));
      zero = static_cast<Key>(zero + (key == 0) + (key == -1));
    }
    for (std::size_t i = 0; i < size; ++i) {
      const Key key = keys[i];
      tiny = static_cast<Key>(tiny + (key < kTiny) - (key <= kNegTiny));
      pos_inf = static_cast<Key>(pos_inf + (key == K::kPosInf));
      neg_inf = static_cast<Key>(neg_inf + (key == K::kNegInf));
    }
    for (std::size_t i = 0; i < size; ++i) {
      const Key for_low = keys[i] < kLow ? kHigh : keys[i];
      const Key for_high = keys[i] > kHigh ? kLow : keys[i];
      low = for_low < low ? for_low : low;
      high = for_high > high ? for_high : high;
    }
    const auto nonfinite = static_cast<std::size_t>(above + below);
    if (nonfinite < size) *extent = {low, high};
    stats->zero += static_cast<std::uint64_t>(zero);
    stats->subnormal += static_cast<std::uint64_t>(tiny - zero);
    stats->pos_inf += static_cast<std::uint64_t>(pos_inf);
    stats->neg_inf += static_cast<std::uint64_t>(neg_inf);
    stats->nan += nonfinite - static_cast<std::uint64_t>(pos_inf + neg_inf);
    return nonfinite;
  }
}

double Fold(const double (&lanes)[kLanes]) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// `centred` is `values` minus a constant; the result's mean is that of `centred`. Sums run in
// lanes: the order of the additions is fixed, and the compiler may use vectors.
Moments BlockMoments(const double* values, const double* centred, std::size_t size) {
  const std::size_t whole = size / kLanes * kLanes;
  double sum[kLanes] = {}, sum_abs[kLanes] = {}, sum_squared[kLanes] = {}, squares[kLanes] = {};
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      sum[lane] += centred[i + lane];
      sum_abs[lane] += std::fabs(value);
      sum_squared[lane] += value * value;
    }
  }
  for (std::size_t i = whole; i < size; ++i) {
    sum[i - whole] += centred[i];
    sum_abs[i - whole] += std::fabs(values[i]);
    sum_squared[i - whole] += values[i] * values[i];
  }
  Moments moments;
  moments.count = static_cast<double>(size);
  moments.mean = Fold(sum) / moments.count;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double distance = centred[i + lane] - moments.mean;
      squares[lane] += distance * distance;
    }
  }
  for (std::size_t i = whole; i < size; ++i) {
    const double distance = centred[i] - moments.mean;
    squares[i - whole] += distance * distance;
  }
  moments.squares = Fold(squares);
  moments.sum_abs = Fold(sum_abs);
  moments.sum_squared = Fold(sum_squared);
  return moments;
}

// Distance of two int64 as a double: exact below 2^53 apart, rounded once otherwise.
double Distance(std::int64_t a, std::int64_t b) {
  std::int64_t difference = 0;
  if (!__builtin_sub_overflow(a, b, &difference)) return static_cast<double>(difference);
  return static_cast<double>(a) - static_cast<double>(b);
}

// The moments of a block, over its finite elements, each multiplied by `scale`. int64 is taken
// relative to `origin`, or the spread of large neighbours would be lost in the rounding.
template <typename T>
Moments DecodeAndSum(const T* block, std::size_t size, bool all_finite, double scale, T origin) {
  double values[kBlock];
  if constexpr (std::is_same_v<T, std::int64_t>) {
    double centred[kBlock];
    for (std::size_t i = 0; i < size; ++i) {
      values[i] = static_cast<double>(block[i]);
      centred[i] = Distance(block[i], origin);
    }
    return BlockMoments(values, centred, size);
  } else {
    (void)origin;
    for (std::size_t i = 0; i < size; ++i) values[i] = ToDouble(block[i]) * scale;
    if (!all_finite) {
      size = static_cast<std::size_t>(
          std::remove_if(values, values + size, [](double x) { return !std::isfinite(x); }) -
          values);
    }
    return size == 0 ? Moments{} : BlockMoments(values, values, size);
  }
}

template <typename T>
std::uint64_t HashBlock(const T* block, std::size_t size) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if constexpr (kIsFloatingElement<T>) {
      hash ^= std::bit_cast<std::uint64_t>(ToDouble(block[i]));
    } else {
      hash ^= static_cast<std::uint64_t>(ToNative(block[i]));
    }
  }
  return hash;
}

template <typename T>
void FindFirstNonfinite(const T* block, std::size_t size, std::uint64_t start, Stats* stats) {
  for (std::size_t i = 0; i < size; ++i) {
    const double value = ToDouble(block[i]);
    if (std::isfinite(value)) continue;
    stats->has_nonfinite = true;
    stats->first_nonfinite = start + i;
    stats->first_nonfinite_value = value;
    return;
  }
}

// Takes over what the kernels found, in the form of the plain loops: of the two zeros, an extent
// ends with the one that widens it.
template <typename T>
void Absorb(const KernelSums& sums, [[maybe_unused]] T origin, Stats* stats, Extent<T>* extent,
            Moments* moments) {
  stats->zero += sums.zero;
  stats->subnormal += sums.subnormal;
  stats->hash ^= sums.hash;
  if (sums.moments.count == 0) return;
  using K = OrderedKey<T>;
  extent->min = std::min(extent->min, K::FromValue(sums.min == 0 ? -0.0 : sums.min));
  extent->max = std::max(extent->max, K::FromValue(sums.max == 0 ? 0.0 : sums.max));
  Moments seen = sums.moments;
  if constexpr (std::is_same_v<T, std::int64_t>) seen.mean -= static_cast<double>(origin);
  moments->Merge(seen);
}

template <typename T>
Moments CountAndSum(const TensorView& view, Stats* stats, Extent<T>* extent) {
  const SumKernel sum = ChosenSumKernel();
  T block[kBlock];
  typename OrderedKey<T>::Key keys[kBlock];
  const T origin = LoadElement<T>(view.data, 0);
  KernelSums sums;
  Moments moments;
  for (std::uint64_t start = 0; start < stats->count;) {
    start += sum(view.dtype, view.data.data() + start * sizeof(T), stats->count - start, &sums);
    if (start == stats->count) break;
    const std::size_t size = LoadBlock(view, start, block);
    stats->hash ^= HashBlock(block, size);
    ToKeys(block, size, keys);
    const std::size_t nonfinite = CountBlock(keys, size, stats, extent);
    if (nonfinite > 0 && !stats->has_nonfinite) FindFirstNonfinite(block, size, start, stats);
    moments.Merge(DecodeAndSum(block, size, nonfinite == 0, 1.0, origin));
    start += size;
  }
  Absorb(sums, origin, stats, extent, &moments);
  return moments;
}

// Sums again, with every element scaled near 1: squares of very large or small doubles leave the
// range.
Moments SumScaled(const TensorView& view, double scale) {
  double block[kBlock];
  Moments moments;
  for (std::uint64_t start = 0; start < view.count(); start += kBlock) {
    const std::size_t size = LoadBlock(view, start, block);
    moments.Merge(DecodeAndSum(block, size, /*all_finite=*/false, scale, 0.0));
  }
  return moments;
}

// The smallest key of each bin but the first. Exact: no element is put in a bin by rounding.
template <typename T>
std::array<typename OrderedKey<T>::Key, kHistogramBins> BinEdges(const Extent<T>& extent) {
  using K = OrderedKey<T>;
  using Key = typename K::Key;
  std::array<Key, kHistogramBins> edges{};
  for (std::size_t bin = 1; bin < kHistogramBins; ++bin) {
    if constexpr (K::kIsFloating) {
      const double part = static_cast<double>(bin) / kHistogramBins;
      const double min = K::ToValue(extent.min), max = K::ToValue(extent.max), range = max - min;
      const double edge = std::isfinite(range) ? min + range * part : min * (1 - part) + max * part;
      Key low = extent.min, high = extent.max;
      while (low < high) {
        const Key middle = std::midpoint(low, high);
        if (K::ToValue(middle) < edge) {
          low = static_cast<Key>(middle + 1);
        } else {
          high = middle;
        }
      }
      edges[bin] = low == 0 ? Key{-1} : low;  // -0.0 is not below 0.0
      edges[bin] = std::max(edges[bin], bin == 1 ? extent.min : edges[bin - 1]);
    } else {
      __extension__ using Wide = __int128;
      const Wide range = static_cast<Wide>(extent.max) - extent.min;
      const Wide step = (range * static_cast<Wide>(bin) + kHistogramBins - 1) / kHistogramBins;
      edges[bin] = static_cast<Key>(extent.min + step);
    }
  }
  return edges;
}

template <typename T>
void FillHistogram(const TensorView& view, const Extent<T>& extent, Stats* stats) {
  using K = OrderedKey<T>;
  using Key = typename K::Key;
  static_assert(kInnerEdges + 1 == kHistogramBins);
  const auto edges = BinEdges(extent);
  EdgeCounts counts;
  std::copy(edges.begin() + 1, edges.end(), counts.edges.begin());
  counts.highest = K::kHighestFinite;
  counts.all_finite = stats->nonfinite() == 0;
  T block[kBlock];
  Key keys[kBlock];
  std::uint64_t start = ChosenEdgeKernel()(view.dtype, view.data.data(), stats->count, &counts);
  while (start < stats->count) {
    const std::size_t size = LoadBlock(view, start, block);
    ToKeys(block, size, keys);
    for (std::size_t edge = 1; edge < kHistogramBins; ++edge) {
      Key found = 0;
      for (std::size_t i = 0; i < size; ++i)
        found = static_cast<Key>(found + (keys[i] < edges[edge]));
      counts.below[edge - 1] += static_cast<std::uint64_t>(found);
    }
    Key above = 0;
    for (std::size_t i = 0; i < size; ++i) {
      above = static_cast<Key>(above + (keys[i] > K::kHighestFinite));
    }
    counts.above += static_cast<std::uint64_t>(above);
    start += size;
  }
  // Negative NaN and Inf lie below every edge.
  std::uint64_t at_or_above = stats->finite();
  for (std::size_t bin = 0; bin < kHistogramBins; ++bin) {
    const std::uint64_t next =
        bin < kInnerEdges ? stats->count - counts.below[bin] - counts.above : 0;
    stats->histogram[bin] = at_or_above - next;
    at_or_above = next;
  }
}

// The power of two that brings `abs_max` near 1, or 1 when its square and its count are in range.
double ScaleFor(double abs_max) {
  if (abs_max == 0 || (abs_max < 0x1p480 && abs_max > 0x1p-480)) return 1.0;
  return std::ldexp(1.0, std::clamp(-std::ilogb(abs_max), -1022, 1022));
}

template <typename T>
void Summarize(const TensorView& view, bool histogram, Stats* stats) {
  Extent<T> extent;
  Moments moments = CountAndSum<T>(view, stats, &extent);
  if (stats->finite() == 0) return;
  stats->min = OrderedKey<T>::ToValue(extent.min) + 0.0;  // -0.0 becomes 0.0
  stats->max = OrderedKey<T>::ToValue(extent.max) + 0.0;
  stats->abs_max = std::max(std::fabs(stats->min), std::fabs(stats->max));
  double scale = 1.0;
  if constexpr (std::is_same_v<T, double>) {
    scale = ScaleFor(stats->abs_max);
    if (scale != 1.0) moments = SumScaled(view, scale);
  }
  double mean = moments.mean / scale;
  if constexpr (std::is_same_v<T, std::int64_t>) {
    const auto origin = static_cast<long double>(LoadElement<T>(view.data, 0));
    mean = static_cast<double>(origin + static_cast<long double>(moments.mean));
  }
  stats->mean = std::clamp(mean, stats->min, stats->max);
  stats->std = extent.min == extent.max ? 0 : std::sqrt(moments.squares / moments.count) / scale;
  stats->l1 = moments.sum_abs / scale;
  stats->l2 = std::sqrt(moments.sum_squared) / scale;
  stats->rms = std::sqrt(moments.sum_squared / moments.count) / scale;
  if (!histogram) return;
  if (stats->min == stats->max && extent.min == extent.max) {
    stats->histogram[0] = stats->finite();
  } else if constexpr (std::is_same_v<T, Bool8>) {
    stats->histogram.front() = stats->zero;
    stats->histogram.back() = stats->count - stats->zero;
  } else {
    FillHistogram(view, extent, stats);
  }
}

}  // namespace

namespace {

std::uint64_t SumInOrder(const TensorView& view, bool may_be_nan) {
  std::uint64_t sum = 0, done = 0;
  if (!may_be_nan) done = ChosenOrderedKernel()(view.data.data(), view.data.size() / 16, &sum);
  return sum + layout::OrderedSum(view.dtype, view.data.data(), view.count(), may_be_nan, done);
}

// 127 and beyond for an int8.
template <typename T>
bool IsSaturated(T element, double largest) {
  if constexpr (kIsFloatingElement<T>) return std::fabs(ToDouble(element)) == largest;
  return std::fabs(ToDouble(element)) >= largest;
}

// Requires: a type of CountsSaturated(), all of which have one byte.
std::uint64_t CountSaturated(const TensorView& view, const Stats& stats) {
  const layout::DtypeInfo& info = *layout::FindDtype(view.dtype);
  const double largest = info.is_floating ? info.max_finite : 127;
  if (!(stats.abs_max >= largest)) return 0;
  std::array<std::uint8_t, 256> is_saturated{};  // how many of the values in a byte
  VisitDtype(view.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    for (unsigned bits = 0; bits < is_saturated.size(); ++bits) {
      const auto byte = static_cast<std::byte>(bits);
      if constexpr (kHoldsTwo<T>) {
        for (const float value : ValuesOf(LoadElement<T>({&byte, 1}, 0))) {
          is_saturated[bits] += std::fabs(value) == largest;
        }
      } else if constexpr (sizeof(T) == 1) {
        is_saturated[bits] = IsSaturated(LoadElement<T>({&byte, 1}, 0), largest);
      }
    }
  });
  std::uint64_t count = 0;
  for (const std::byte byte : view.data) count += is_saturated[std::to_integer<unsigned>(byte)];
  return count;
}

Stats Compute(const TensorView& view, bool histogram) {
  Stats stats;
  stats.count = view.count() * layout::ValuesPerElement(view.dtype);
  stats.has_hash = stats.has_ordered_hash = true;
  stats.has_saturated = layout::CountsSaturated(view.dtype);
  if (stats.count == 0) return stats;
  VisitDtype(view.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if constexpr (kHoldsTwo<T>) {
      const Float4Values values(view);
      Summarize<Float8E4m3fn>(values.view(), histogram, &stats);
      stats.subnormal = values.subnormal();
    } else {
      Summarize<T>(view, histogram, &stats);
    }
  });
  if (stats.has_saturated) stats.saturated = CountSaturated(view, stats);
  stats.ordered_hash = layout::OrderedHash(SumInOrder(view, /*may_be_nan=*/stats.nan > 0));
  return stats;
}

}  // namespace

Stats ComputeStats(const TensorView& view) { return Compute(view, /*histogram=*/true); }
Stats ComputeSums(const TensorView& view) { return Compute(view, /*histogram=*/false); }

}  // namespace cgdebug::numerics
