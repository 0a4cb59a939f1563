// npy.h: the header of NumPy's .npy format.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "proto/layout/dtype.h"

namespace cgdebug::cli {

// What goes before the contiguous little-endian elements; its length is a multiple of 64.
// NumPy has no bfloat16: it is written as uint16, whose bits are the upper half of a float32.
// Requires: a known dtype.
std::string NpyHeader(layout::Dtype dtype, std::span<const std::uint64_t> shape);

}  // namespace cgdebug::cli
