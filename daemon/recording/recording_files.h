// recording_files.h: the files of a recording's directory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace cgdebug::recording {

std::string SegmentPath(const std::string& directory, std::uint32_t segment);
// In the order of their numbers; empty when there is no such directory.
std::vector<std::string> ListSegments(const std::string& directory);

// Held for as long as the descriptor is open.
// Fails: another process writes into the recording.
Result<UniqueFd> LockForWriting(const std::string& directory);
bool IsBeingWritten(const std::string& directory);

}  // namespace cgdebug::recording
