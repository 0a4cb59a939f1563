// tensor_part.h: which elements of a tensor a probe sees, if it does not see all of them.
//
//   rows:A:B   indices A to B-1 of dimension 0, as x[A:B]: B may lie beyond its end
//   first:N    the first N elements in row-major order, in one dimension
//   stride:K   the elements 0, K, 2K ... in row-major order, in one dimension
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cgdebug/probe.h"

namespace cgdebug {

struct TensorPart {
  enum class Kind : std::uint8_t { kRows, kFirst, kStride };
  Kind kind = Kind::kFirst;
  std::uint64_t begin = 0;  // rows: A
  std::uint64_t end = 0;    // rows: B; first: N; stride: K
};

// Fails: throws ProbeError kBadArgument, which begins with `who` and says what to type.
TensorPart ParsePart(const std::string& who, std::string_view text);

// The part of `tensor`, which is whole. Its data are a view of the tensor's.
// Fails: throws ProbeError: an impossible tensor, rows of a tensor without dimensions, or rows none
//        of which the tensor has although it has others.
TensorRef TakePart(const std::string& probe, const TensorPart& part, const TensorRef& tensor);

// The bytes of the part of a whole tensor. Fails: as TakePart().
std::vector<std::byte> BytesOfPart(const std::string& probe, const TensorPart& part,
                                   const ExpectedTensor& whole);

// As NeededFor().
std::optional<NeededRange> RangeOf(const TensorPart& part, const std::vector<std::int64_t>& shape);

}  // namespace cgdebug
