// tensor_text.h: a tensor in one line, wherever it comes from.
#pragma once

#include <cstddef>
#include <string>

#include "client/source/source.h"

namespace cgdebug::cli {

// The type is padded to `type_width`.
std::string TensorLine(const source::Tensor& tensor, bool colour, std::size_t type_width);

// Why a snapshot has no values.
// A screen of 80 columns and 24 lines shows both below a tensor's statistics.
inline constexpr const char* kOnlyStatistics =
    "only the statistics were kept (TensorStats, set to statistics, over the daemon's memory "
    "limit, or left on the device)";
// What to do for values the next time.
// What to do for its values.
std::string ForValues(const source::Slot& slot);

}  // namespace cgdebug::cli
