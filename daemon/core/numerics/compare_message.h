// compare_message.h: what is said about two tensors that are not close.
#pragma once

#include <string>
#include <string_view>

#include "daemon/core/numerics/compare.h"
#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::numerics {

// Four lines in the words of torch.testing.assert_close. A bitwise comparison, which torch lacks,
// uses similar words. `greatest_abs` is result.max_abs.value as its dtype writes it: an int64 has
// more digits than a double.
// Requires: !result.ok, and everything but its message is known.
std::string MismatchMessage(const TensorView& actual, const TensorView& expected,
                            const CompareOptions& options, const CompareResult& result,
                            std::string_view greatest_abs);

}  // namespace cgdebug::numerics
