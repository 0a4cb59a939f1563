// picture.h: the values of a tensor as small images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/analysis/json_number.h"
#include "client/source/source.h"
#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::report {

inline constexpr std::size_t kMostRows = 48;
inline constexpr std::size_t kMostColumns = 96;

// The last two dimensions of `view` as images, at most `most_slices` of them: the first ones, and
// the one with element `marked`. A pixel stands for a block of elements and has the one of largest
// magnitude; NaN goes before Inf, and Inf before numbers. Codes: 0 NaN, 1 +Inf, 2 -Inf, else
// 129 + 126 * asinh(value / scale) / asinh(largest / scale).
// Null for a scalar or a tensor without elements.
Json PictureJson(const numerics::TensorView& view, std::size_t most_slices,
                 std::optional<std::uint64_t> marked);

}  // namespace cgdebug::report
