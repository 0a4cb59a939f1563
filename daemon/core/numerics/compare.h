// compare.h: whether two tensors are close, and the words of torch.testing.assert_close when not.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/numerics/tensor_view.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::numerics {

// Close: actual == expected, or |actual - expected| finite and <= atol + rtol * |expected|.
// Computed in double, which is exact for the difference of every type but float64; the difference
// of int64 is exact over its whole range. NaN equals NaN only with equal_nan; infinities of one
// sign are equal.
struct CompareOptions {
  double rtol = 1e-5;
  double atol = 1e-8;
  bool equal_nan = false;
  bool bitwise =
      false;  // every bit the same: -0.0 is not 0.0, NaN equals the same NaN; no tolerance
};

struct Difference {
  double value = 0;
  std::uint64_t index = 0;  // flat, the first of equals; NaN counts as greater than any number
  double allowed = 0;       // atol or rtol
};

// How many values of the dtype's own grid two elements are apart, in bins of powers of two:
// 0, 1, 2, 3-4, 5-8, 9-16, ... 0.0 and -0.0 are 0 apart, infinity is one above the greatest number.
inline constexpr std::size_t kUlpBins = 66;
constexpr std::size_t UlpBin(std::uint64_t distance) {
  return distance == 0 ? 0 : 1 + static_cast<std::size_t>(std::bit_width(distance - 1));
}
constexpr std::uint64_t UlpBinEnd(std::size_t bin) {  // the greatest distance in it
  return bin == 0 ? 0 : bin == kUlpBins - 1 ? ~std::uint64_t{0} : std::uint64_t{1} << (bin - 1);
}

// Where along one dimension the mismatches lie.
struct MismatchSpan {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t distinct = 0;  // how many of its indices hold a mismatch
};

// What is said of tensors that are not close.
struct MismatchText {
  std::string heading = {};  // "Tensor-likes are not close!"; may be empty
  std::string lines = {};    // at most three, no newline at the end
  std::string Whole() const { return heading.empty() ? lines : heading + "\n\n" + lines; }
};

struct CompareResult {
  bool ok = true;
  std::uint64_t compared = 0;
  std::uint64_t mismatched = 0;
  std::uint64_t first_mismatch = 0;  // flat index; with !ok
  Difference max_abs;                // over the mismatched elements
  Difference max_rel;                // relative to |expected|; inf where that is 0
  MismatchText text;                 // empty when ok

  // Counts all elements, also those that match. Two NaN are 0 apart, whatever their payloads. If
  // only one side is NaN there is no distance, so
  // compared = sum of ulp + nan_in_actual + nan_in_expected.
  std::array<std::uint64_t, kUlpBins> ulp{};
  std::uint64_t nan_in_actual = 0;    // and a number in expected
  std::uint64_t nan_in_expected = 0;  // and a number in actual

  // What the mismatches have in common, with !ok.
  std::vector<MismatchSpan> spans;       // one per dimension; empty if MismatchMap cannot tell
  std::uint64_t mismatched_zero = 0;     // actual is 0 there
  std::uint64_t mismatched_greater = 0;  // actual > expected there
};

// What a comparison on the device says of tensors that are not close (layout::SlotFailure). The
// text is that of Compare() for the same tensors. Fails: an unknown dtype.
Result<MismatchText> FailureText(layout::Dtype dtype, const std::vector<std::uint64_t>& shape,
                                 const CompareOptions& options, const layout::SlotFailure& failure);

// The tolerances torch.testing.assert_close takes for a dtype when none are given.
CompareOptions DefaultTolerances(layout::Dtype dtype);

// Of float4_e2m1fn_x2 the values are compared and counted, two in an element, and an index is that
// of a value: in a shape whose last dimension is twice as long. Thread: any. Requires: views from
// MakeTensorView. Fails: another dtype or shape, a tolerance that is negative or not finite; the
// message names both sides.
Result<CompareResult> Compare(const TensorView& actual, const TensorView& expected,
                              const CompareOptions& options);

}  // namespace cgdebug::numerics
