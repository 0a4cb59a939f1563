// probe_name.h: which names a probe may have.
#pragma once

#include <string>
#include <string_view>

#include "daemon/core/base/result.h"

namespace cgdebug::words {

// Fails: the name is empty or too long, or has a character that selectors use or that ends a line.
Result<void> CheckProbeName(std::string_view name);

// A valid name made from any text, empty if that is. Keeps the end of a long one.
std::string MakeProbeName(std::string_view text);

}  // namespace cgdebug::words
