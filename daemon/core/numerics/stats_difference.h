// stats_difference.h: whether two tensors are told apart by their statistics alone.
#pragma once

#include <string>
#include <vector>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::numerics {

// A statistic in which two tensors differ.
struct StatsDifference {
  std::string name;  // of the statistic, as everywhere: "abs_max", "xor_hash"
  std::string a;
  std::string b;
};

// The statistics in which two tensors of one dtype and shape differ; empty when there are none.
//
// Counts, min, max, abs_max and the hashes have to be equal; mean, std, l1 and l2 may differ in the
// last digits, because a GPU and a CPU add up in another order. Ignores a hash that one of the two
// lacks. Without the ordered hash, tensors that are equal in all of them have the same values in
// some order: the XOR of the elements depends neither on their places nor on pairs of equal ones.
// Thread: any.
std::vector<StatsDifference> DifferencesOf(const Stats& a, const Stats& b);

// Whether a tensor with these statistics has others with the same statistics and XOR hash that
// have its elements in another order: not if there is one element, or all are equal.
bool OrderMatters(const Stats& stats);

// Whether these statistics can be those of tensors whose elements are all within
// atol + rtol * |b| of each other; counts of zeros and the hash say nothing about that.
bool MayBeClose(const Stats& a, const Stats& b, double rtol, double atol);

}  // namespace cgdebug::numerics
