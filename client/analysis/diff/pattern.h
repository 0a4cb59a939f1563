// pattern.h: what the mismatches of two tensors have in common, in words.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "daemon/core/numerics/compare.h"

namespace cgdebug::analysis {

// "every mismatch lies in [7, 511, :], all of it  -> the end of dim 0 and 1: looks like padding or
// a stale last row". Empty for a scalar, and where nothing is known.
std::string PatternText(const numerics::CompareResult& result,
                        std::span<const std::uint64_t> shape);

// "0: 120  1: 7  5-8: 1  NaN in A only: 2": elements by how many values of their dtype they are
// apart. Empty when every element is equal.
std::string UlpText(const numerics::CompareResult& result);

}  // namespace cgdebug::analysis
