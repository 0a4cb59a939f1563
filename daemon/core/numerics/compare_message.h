// compare_message.h: what is said about two tensors that are not close.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "daemon/core/numerics/compare.h"
#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::numerics {

// The bits of an element and of the expected one.
struct ElementPair {
  std::uint64_t actual = 0;
  std::uint64_t expected = 0;
};

// In the words of torch.testing.assert_close. A bitwise comparison, which torch lacks,
// uses similar words. `greatest_abs` is result.max_abs.value as its dtype writes it: an int64 has
// more digits than a double. `first` is the pair at result.first_mismatch.
// Requires: !result.ok; mismatched, compared, first_mismatch, max_abs and max_rel are known.
MismatchText TextOfMismatch(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                            const ElementPair& first, const CompareOptions& options,
                            const CompareResult& result, std::string_view greatest_abs);

// A difference between elements of `dtype`, which is not int64.
std::string DifferenceText(layout::Dtype dtype, double difference);

}  // namespace cgdebug::numerics
