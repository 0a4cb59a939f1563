// regular_file.h: opens a file by name, but only if it is a regular file, and reads from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug {

// `flags` as for open(2). A file that is created is readable by its owner only.
//
// A plain open() of a pipe waits for the other end, and opening a device may do anything.
// Fails: there is no file, or it is a pipe, a socket, a device or a directory.
Result<UniqueFd> OpenRegularFile(const std::string& path, int flags);

// Reads as many bytes as there are, up to the buffer's size.
std::size_t ReadAt(int fd, std::uint64_t offset, std::span<std::byte> buffer);

}  // namespace cgdebug
