// regular_file.h: opening files by names that anything may lie under.
#pragma once

#include <string>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug {

// `flags` as of open(2); a file that is created is readable by its owner alone.
//
// A plain open() of a pipe waits for its other end, and one of a device may do anything.
// Fails: there is no file, or it is a pipe, a socket, a device or a directory.
Result<UniqueFd> OpenRegularFile(const std::string& path, int flags);

}  // namespace cgdebug
