// npy.h: the header of NumPy's .npy format.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "proto/layout/dtype.h"

namespace cgdebug::cli {

// What goes before the contiguous little-endian elements; its length is a multiple of 64.
// NumPy has no bfloat16 and no float8: they are written as the unsigned integers of their bits;
// those of a bfloat16 are the upper half of a float32. Requires: a known dtype.
std::string NpyHeader(layout::Dtype dtype, std::span<const std::uint64_t> shape);

}  // namespace cgdebug::cli
