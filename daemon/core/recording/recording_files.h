// recording_files.h: the files of a recording's directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug::recording {

std::string SegmentPath(const std::string& directory, std::uint32_t segment);
// In the order of their numbers; empty when there is no such directory.
// Fails: it cannot be read. A part of the list would make a recording look shorter than it is.
Result<std::vector<std::string>> ListSegments(const std::string& directory);

// Held for as long as the descriptor is open.
// Fails: another process writes into the recording.
Result<UniqueFd> LockForWriting(const std::string& directory);
bool IsBeingWritten(const std::string& directory);

// Where the last index of an unfinished segment lies: the lock file's content. A hint: a reader
// that finds none, or no such index there, walks through the segment.
struct IndexNote {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
};
void WriteIndexNote(const UniqueFd& lock, const IndexNote& note);
std::optional<IndexNote> ReadIndexNote(const std::string& directory);

}  // namespace cgdebug::recording
