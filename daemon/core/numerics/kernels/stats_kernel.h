// stats_kernel.h: the loops of ComputeStats, for the vectors of the CPU that runs them. Internal to
// daemon/core/numerics.
//
// A kernel does whole vectors of ordinary numbers and says how far it came. The plain loops of
// stats.cpp do the rest: tails, blocks with NaN or Inf, int64 beyond 2^52, ranges whose squares
// overflow a float, float8 types with one NaN, CPUs without kernels. Both give the same counts,
// extremes and hash, and sums that differ in the last digits (stats.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "daemon/core/numerics/kernels/moments.h"
#include "proto/layout/dtype.h"

namespace cgdebug::numerics {

// Exact sums over integers.
struct IntegerTotals {
  std::uint64_t count = 0;
  std::uint64_t zero = 0;
  std::int64_t sum = 0;
  std::uint64_t absolute = 0;
  std::uint64_t squared = 0;
};

// What a kernel adds up, over finite elements only.
struct KernelSums {
  Moments moments;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  std::uint64_t zero = 0;
  std::uint64_t subnormal = 0;
  std::uint64_t hash = 0;

  void Add(const IntegerTotals& totals, double least, double most, std::uint64_t hashed) {
    __extension__ using Wide = __int128;
    const auto count = static_cast<double>(totals.count);
    const Wide around_mean = static_cast<Wide>(totals.count) * static_cast<Wide>(totals.squared) -
                             static_cast<Wide>(totals.sum) * totals.sum;
    Moments seen;
    seen.count = count;
    seen.mean = static_cast<double>(totals.sum) / count;
    seen.squares = static_cast<double>(around_mean) / count;
    seen.sum_abs = static_cast<double>(totals.absolute);
    seen.sum_squared = static_cast<double>(totals.squared);
    moments.Merge(seen);
    min = std::min(min, least);
    max = std::max(max, most);
    zero += totals.zero;
    hash ^= hashed;
  }
};

// Edges of the histogram in the dtype's ordered keys (ordered_key.h): how many keys lie below each,
// and how many above `highest`. A NaN is counted once, on either side.
inline constexpr std::size_t kInnerEdges = 7;
struct EdgeCounts {
  std::array<std::int64_t, kInnerEdges> edges{};
  std::int64_t highest = 0;
  bool all_finite = false;
  std::array<std::uint64_t, kInnerEdges> below{};
  std::uint64_t above = 0;
};

// Both return how many elements they did, from the first on; 0: the plain loops must do one block.
using SumKernel = std::uint64_t (*)(layout::Dtype dtype, const std::byte* data, std::uint64_t count,
                                    KernelSums* sums);
using EdgeKernel = std::uint64_t (*)(layout::Dtype dtype, const std::byte* data,
                                     std::uint64_t count, EdgeCounts* counts);

// The kernels for ChosenCpu(). For kPlain: functions that handle no element.
SumKernel ChosenSumKernel();
EdgeKernel ChosenEdgeKernel();

}  // namespace cgdebug::numerics
