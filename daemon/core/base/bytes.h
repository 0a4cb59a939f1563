// bytes.h: "512M", "1.5G" as people type them.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug {

// A number and K, M, G or T, which count by 1024; "B" and "iB" may follow; bytes without a unit.
// Fails: the text is not a size, is negative or beyond 2^63, or lies outside `least` to `most`.
Result<std::uint64_t> ParseBytes(const std::string& text, std::uint64_t least = 0,
                                 std::uint64_t most = std::uint64_t{1} << 63);

}  // namespace cgdebug
