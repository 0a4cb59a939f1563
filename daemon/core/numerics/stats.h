// stats.h: what there is to say about a tensor in one line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::numerics {

inline constexpr std::size_t kHistogramBins = 8;

// Mirrors `Stats` in proto/control.proto. Minimum to histogram are over the finite elements.
struct Stats {
  std::uint64_t count = 0;
  std::uint64_t nan = 0;
  std::uint64_t pos_inf = 0;
  std::uint64_t neg_inf = 0;
  std::uint64_t zero = 0;       // both signs
  std::uint64_t subnormal = 0;  // of the tensor's own type
  // NaN when no element is finite; int64 beyond 2^53 is rounded to the nearest double.
  double min = std::numeric_limits<double>::quiet_NaN();
  double max = std::numeric_limits<double>::quiet_NaN();
  double mean = std::numeric_limits<double>::quiet_NaN();
  double std = std::numeric_limits<double>::quiet_NaN();  // population
  double abs_max = std::numeric_limits<double>::quiet_NaN();
  double l1 = 0;
  double l2 = 0;
  // torch.hash_tensor on a CPU: XOR of the elements, each as a double or an int64. float8, which
  // torch has no hash of, the same way. Of no elements 0. Without has_hash it was not computed.
  bool has_hash = false;
  std::uint64_t hash = 0;
  bool has_nonfinite = false;
  std::uint64_t first_nonfinite = 0;  // flat index; with has_nonfinite
  double first_nonfinite_value = 0;
  // Equal bins over [min, max], each with its lower edge, the last with both. All in the first when
  // min == max.
  std::array<std::uint64_t, kHistogramBins> histogram{};

  std::uint64_t nonfinite() const { return nan + pos_inf + neg_inf; }
  std::uint64_t finite() const { return count - nonfinite(); }
};

// Everything but mean, std, l1 and l2 is exact. Those run in double around a mean of what was seen
// so far, block by block, and are good to about 1e-13 of abs_max (mean, std) and of themselves (l1,
// l2) whatever the mean and the range; of float16, bfloat16 and float8 in float for up to 16
// additions and then in double: to 2e-6.
// Thread: any. Requires: a view from MakeTensorView.
Stats ComputeStats(const TensorView& view);

}  // namespace cgdebug::numerics
