// mismatch_map.h: where in a tensor the mismatches of a comparison lie, dimension by dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/core/numerics/compare.h"

namespace cgdebug::numerics {

// Marks a place of the leading dimensions and one of the trailing dimensions for each mismatch: two
// bitmaps, from which every dimension's indices follow exactly. Tensors that would need more places
// than these get no spans.
class MismatchMap {
 public:
  static constexpr std::uint64_t kMostOfOne = std::uint64_t{1} << 27;
  static constexpr std::uint64_t kMostOfSeveral = std::uint64_t{1} << 20;

  // Lifetime: borrows `shape`.
  explicit MismatchMap(std::span<const std::uint64_t> shape);

  void Add(std::uint64_t index) { AddWord(index, 1); }
  // Bit i of `mask` is the element `first` + i.
  void AddWord(std::uint64_t first, std::uint64_t mask);

  // One per dimension; empty if nothing was added or the tensor is too large to tell.
  std::vector<MismatchSpan> Spans() const;

 private:
  using Bitmap = std::vector<std::uint64_t>;
  void AppendSpans(const Bitmap& bitmap, std::span<const std::uint64_t> sizes,
                   std::vector<MismatchSpan>* spans) const;

  std::span<const std::uint64_t> shape_;
  std::size_t leading_dims_ = 0;
  std::uint64_t row_ = 1;  // elements of the trailing dimensions
  Bitmap leading_;
  Bitmap trailing_;
  bool fits_ = false;
  bool any_ = false;
};

}  // namespace cgdebug::numerics
