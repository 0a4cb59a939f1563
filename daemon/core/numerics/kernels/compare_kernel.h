// compare_kernel.h: the loops of Compare, for the vectors of the CPU that runs them. Internal to
// daemon/core/numerics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/core/numerics/compare.h"
#include "proto/layout/dtype.h"

namespace cgdebug::numerics {

inline constexpr std::size_t kCompareBlock = 2048;

// What the elements of one block add to a CompareResult: bit for bit the result of the plain loops
// of compare.cpp.
struct BlockComparison {
  double max_rel_before = 0;  // of earlier blocks: smaller ratios need not be found
  std::uint64_t mismatched = 0;
  std::array<std::uint64_t, kCompareBlock / 64> mismatch{};  // bit i of word w: element 64 w + i
  std::uint64_t mismatched_zero = 0;
  std::uint64_t mismatched_greater = 0;
  std::uint64_t nan_in_actual = 0;
  std::uint64_t nan_in_expected = 0;
  double max_abs = 0;  // of the mismatches; NaN when one is
  double max_rel = 0;
  std::array<std::uint64_t, kUlpBins> ulp{};
};

// Takes a block of `count` elements. False, with nothing done, if the plain loops must do it: for
// bitwise comparisons, int64, or a `count` that is not a whole number of vectors.
using CompareKernel = bool (*)(layout::Dtype dtype, const std::byte* actual,
                               const std::byte* expected, std::size_t count,
                               const CompareOptions& options, BlockComparison* block);
using NanKernel = bool (*)(layout::Dtype dtype, const std::byte* data, std::size_t count);

struct CompareKernels {
  CompareKernel compare = nullptr;
  NanKernel has_nan = nullptr;
};

// The kernels for ChosenCpu(). For kPlain: null pointers.
CompareKernels ChosenCompareKernels();

}  // namespace cgdebug::numerics
