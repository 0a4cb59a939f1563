// stats_difference.h: whether two tensors are told apart by their statistics alone.
#pragma once

#include <string>
#include <vector>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::numerics {

// What the two tensors whose values differ disagree in.
struct StatsDifference {
  std::string name;  // of the statistic, as everywhere: "abs_max", "xor_hash"
  std::string a;
  std::string b;
};

// The statistics in which two tensors of one dtype and shape differ; empty when there are none.
//
// Counts, min, max, abs_max and the XOR hash have to be equal; mean, std, l1 and l2 may differ in
// the last digits, because a GPU and a CPU add up in another order. What is equal in all of them
// has with all likelihood the same values, in some order: the XOR of the elements knows neither
// their places nor a pair of equal ones. A hash that one of the two lacks is not looked at. Thread:
// any.
std::vector<StatsDifference> DifferencesOf(const Stats& a, const Stats& b);

// Whether these statistics can be those of tensors whose elements are all within
// atol + rtol * |b| of each other; counts of zeros and the hash say nothing about that.
bool MayBeClose(const Stats& a, const Stats& b, double rtol, double atol);

}  // namespace cgdebug::numerics
