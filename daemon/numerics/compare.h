// compare.h: whether two tensors are close, and the words of torch.testing.assert_close when not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "daemon/base/result.h"
#include "daemon/numerics/tensor_view.h"

namespace cgdebug::numerics {

// Close: actual == expected, or |actual - expected| finite and <= atol + rtol * |expected|.
// Computed in double, which is exact for the difference of every type but float64; int64 exactly
// over its whole range. NaN equals NaN only with equal_nan; infinities of one sign are equal.
struct CompareOptions {
  double rtol = 1e-5;
  double atol = 1e-8;
  bool equal_nan = false;
  bool bitwise =
      false;  // every bit the same: -0.0 is not 0.0, NaN equals the same NaN; no tolerance
  // Called with the flat index of each mismatched element, ascending.
  std::function<void(std::uint64_t)> on_mismatch = {};
};

struct Difference {
  double value = 0;
  std::uint64_t index = 0;  // flat, the first of equals; NaN counts as greater than any number
  double allowed = 0;       // atol or rtol
};

struct CompareResult {
  bool ok = true;
  std::uint64_t compared = 0;
  std::uint64_t mismatched = 0;
  std::uint64_t first_mismatch = 0;  // flat index; with !ok
  Difference max_abs;                // over the mismatched elements
  Difference max_rel;                // relative to |expected|; inf where that is 0
  std::string message;               // four lines, no newline at the end; empty when ok
};

// The tolerances torch.testing.assert_close takes for a dtype when none are given.
CompareOptions DefaultTolerances(layout::Dtype dtype);

// Thread: any. Requires: views from MakeTensorView.
// Fails: another dtype or shape, a tolerance that is negative or not finite; the message names both
// sides.
Result<CompareResult> Compare(const TensorView& actual, const TensorView& expected,
                              const CompareOptions& options);

}  // namespace cgdebug::numerics
