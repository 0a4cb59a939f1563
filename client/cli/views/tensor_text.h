// tensor_text.h: a tensor in one line, wherever it comes from.
#pragma once

#include <cstddef>
#include <string>

#include "client/source/source.h"

namespace cgdebug::cli {

// The type is padded to `type_width`.
std::string TensorLine(const source::Tensor& tensor, bool colour, std::size_t type_width);

// Why a snapshot has no values.
inline constexpr const char* kOnlyStatistics =
    "only the statistics were kept (its action is TensorStats, it was set to statistics, the "
    "daemon's memory limit was reached, or the values stayed on the device)";
// What to do for values the next time.
inline constexpr const char* kForValues =
    "For values, give the probe a TensorRecord, or type: cgdebug-cli run --watch '*' --on nan -- "
    "python train.py";

}  // namespace cgdebug::cli
