// comparison.h: compares a snapshot with the expected tensor of its probe.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "daemon/core/base/result.h"
#include "daemon/core/numerics/compare.h"
#include "daemon/model/identity.h"

namespace cgdebug::pipeline {

using ComparisonPtr = std::shared_ptr<const Result<numerics::CompareResult>>;

// Uses the tolerances of the probe. Thread: any.
// Fails: the bytes are not a tensor of the slot's dtype and shape.
ComparisonPtr CompareWithExpected(const SlotIdentity& slot, std::span<const std::byte> values,
                                  std::span<const std::byte> expected);

}  // namespace cgdebug::pipeline
