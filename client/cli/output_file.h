// output_file.h: a file that the user asked for with -o.
#pragma once

#include <string>
#include <string_view>

#include "daemon/core/base/result.h"

namespace cgdebug::cli {

// Writes both, one after the other; "-" means stdout. Fails: the file exists and not `force`; it
// cannot be created or written. Then there is no file, or with `force` the one that was there.
Result<void> WriteFile(const std::string& path, bool force, std::string_view header,
                       std::string_view payload);

}  // namespace cgdebug::cli
