// ordered_hash_kernel.h: the sum of layout/ordered_hash.h, for the vectors of the CPU that runs it.
// Internal to daemon/core/numerics.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgdebug::numerics {

// Adds to `sum` what the first of `count` times 16 bytes add, none of which holds a NaN. Returns
// how many times 16 bytes these are; the others are left to OrderedSum().
using OrderedKernel = std::uint64_t (*)(const std::byte* data, std::uint64_t count,
                                        std::uint64_t* sum);

// The kernel for ChosenCpu(). Where there is none: a function that does nothing.
OrderedKernel ChosenOrderedKernel();

}  // namespace cgdebug::numerics
