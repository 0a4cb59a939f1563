// pattern.h: where in a tensor the mismatches lie.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cgdebug::analysis {

// Units: one bit an index of each dimension, whatever the number of mismatches.
class MismatchPattern {
 public:
  explicit MismatchPattern(std::span<const std::uint64_t> shape);

  void Add(std::uint64_t flat_index);

  // "every mismatch lies in [7, 511, :]  -> the end of dim 0 and 1: looks like padding or a stale
  // last row". Empty for a scalar and without mismatches.
  std::string Text() const;

 private:
  struct Extent {  // of the indices of one dimension that are touched
    std::uint64_t size = 0;
    std::uint64_t touched = 0;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::uint64_t stride = 1;  // 0: they are not evenly spaced
    std::string Text() const;
    bool is_whole() const { return touched == size; }
    bool is_tail() const { return !is_whole() && stride == 1 && last == size - 1; }
  };
  Extent ExtentOf(std::size_t dimension) const;

  std::vector<std::uint64_t> shape_;
  std::vector<std::vector<bool>> touched_;  // by dimension
  std::uint64_t count_ = 0;
};

}  // namespace cgdebug::analysis
