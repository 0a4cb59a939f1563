#include "daemon/pipeline/comparison.h"

namespace cgdebug::pipeline {

ComparisonPtr CompareWithExpected(const SlotIdentity& slot, std::span<const std::byte> values,
                                  std::span<const std::byte> expected) {
  const layout::SlotFacts& registration = slot.registration;
  numerics::CompareOptions options;
  options.rtol = registration.compare_rtol;
  options.atol = registration.compare_atol;
  options.equal_nan = (registration.flags & layout::kCompareEqualNan) != 0;
  options.bitwise = (registration.flags & layout::kCompareBitwise) != 0;
  const auto actual = numerics::MakeTensorView(slot.dtype, slot.shape, values);
  const auto wanted = numerics::MakeTensorView(slot.dtype, slot.shape, expected);
  using Compared = Result<numerics::CompareResult>;
  return std::make_shared<const Compared>(!actual.ok()   ? Compared(actual.error())
                                          : !wanted.ok() ? Compared(wanted.error())
                                                         : Compare(*actual, *wanted, options));
}

}  // namespace cgdebug::pipeline
