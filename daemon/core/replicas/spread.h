// spread.h: how far apart the values of replicas are, element by element.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "proto/layout/dtype.h"

namespace cgdebug::replicas {

// Thread: one at a time.
class Spread {
 public:
  // Takes in the values of one rank. False if they are not as many as those of the others, or not
  // all finite: then nothing is known.
  bool Add(layout::Dtype dtype, std::span<const std::byte> values);

  // Whether each element has values on the ranks that differ by no more than `tolerance`, relative
  // to the largest magnitude of all elements, or than two last places of that magnitude. nullopt if
  // nothing is known, or if there are no two ranks.
  std::optional<bool> Within(double tolerance) const;

 private:
  std::vector<double> least_, most_;  // of each element
  layout::Dtype dtype_ = layout::Dtype::kInvalid;
  std::size_t ranks_ = 0;
  bool is_known_ = true;
};

}  // namespace cgdebug::replicas
