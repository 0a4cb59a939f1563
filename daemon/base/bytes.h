// bytes.h: "512M", "1.5G" as people type them.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/base/result.h"

namespace cgdebug {

// A number and K, M, G or T, which count by 1024; "B" and "iB" may follow; bytes without a unit.
// Fails: the text is none, negative, or more than 2^63.
Result<std::uint64_t> ParseBytes(const std::string& text);

}  // namespace cgdebug
