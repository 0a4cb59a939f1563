// serial.h: how the GPUs and the CPU of a process take serials (EntryHeader::serial) that differ.
//
// Each takes its own in ascending order, which makes them differ among themselves: the clock alone
// does not, because that of a GPU ticks in steps of 32 ns and more. Two takers never take the same,
// because the lowest bits say who took it.
#pragma once

#include <cstdint>

namespace cgdebug::layout {

inline constexpr std::uint64_t kSerialTakers = 32;  // the ns between the serials of one taker

// 0 is the CPU.
constexpr std::uint32_t SerialTakerOf(int device) {
  return 1 + static_cast<std::uint32_t>(device) % static_cast<std::uint32_t>(kSerialTakers - 1);
}

constexpr std::uint64_t SerialAt(std::uint64_t now_ns, std::uint64_t taker) {
  return now_ns / kSerialTakers * kSerialTakers + taker;
}

}  // namespace cgdebug::layout
