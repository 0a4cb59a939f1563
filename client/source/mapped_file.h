// mapped_file.h: values that their owner may write to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "client/source/source.h"
#include "daemon/base/result.h"

namespace cgdebug::source {

// Bytes [offset, offset + size) of a file, writable: what is written stays in these pages alone,
// out of the file and of every other mapping. Requires: they are in the file, and size > 0.
Result<Values> MapPrivately(const std::string& path, std::uint64_t offset, std::size_t size);

// The same in memory of our own, for what is too small to be worth pages.
Values CopyOf(std::span<const std::byte> bytes);

inline constexpr std::size_t kWorthMappingBytes = 64 << 10;

}  // namespace cgdebug::source
