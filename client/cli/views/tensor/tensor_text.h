// tensor_text.h: a tensor in one line, wherever it comes from.
#pragma once

#include <cstddef>
#include <string>

#include "client/source/source.h"

namespace cgdebug::cli {

// The type is padded to `type_width`.
std::string TensorLine(const source::Tensor& tensor, bool colour, std::size_t type_width);

// Why a snapshot has no values, and what to do for them.
std::string WithoutValues(const source::Slot& slot);

}  // namespace cgdebug::cli
