// spread.h: how far apart the values of replicas are, element by element.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "proto/layout/dtype.h"

namespace cgdebug::replicas {

// The distance of two neighbours, relative to the greater of them; 0 for integers.
double LastPlace(layout::Dtype dtype);
// How far elements may be apart, relative to the largest magnitude of all of them: `tolerance`, or
// two last places of that magnitude.
double BoundOf(layout::Dtype dtype, double tolerance);

// Thread: one at a time.
class Spread {
 public:
  // Takes in the values of one rank. False if they are not as many as those of the others: then
  // nothing is known.
  bool Add(layout::Dtype dtype, std::span<const std::byte> values);

  // Whether each element has values on the ranks that lie within BoundOf() of each other. NaN and
  // infinities have to be the same on all. nullopt if nothing is known, or there are no two ranks.
  std::optional<bool> Within(double tolerance) const;

 private:
  std::vector<double> least_, most_;  // of each element; NaN: it is NaN on all ranks
  layout::Dtype dtype_ = layout::Dtype::kInvalid;
  std::size_t ranks_ = 0;
  bool is_known_ = true;
  bool has_other_nan_ = false;  // an element is NaN on some ranks alone
};

}  // namespace cgdebug::replicas
