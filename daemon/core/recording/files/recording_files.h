// recording_files.h: the files of a recording's directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/base/unique_fd.h"

namespace cgdebug::recording {

bool IsSegmentName(std::string_view name);
// Whether the file of that path is named as SegmentPath() names this segment. A copy that a tool
// put beside it has another name.
bool IsNameOfSegment(const std::string& path, std::uint32_t segment);
std::string SegmentPath(const std::string& directory, std::uint32_t segment);
// In the order of their numbers; empty if there is no such directory, which may be a URL.
// Fails: the directory cannot be read. A partial list would make a recording look too short.
Result<std::vector<std::string>> ListSegments(const std::string& directory);

// The lock is held as long as the descriptor is open.
// Fails: another process writes into the recording.
Result<UniqueFd> LockForWriting(const std::string& directory);
bool IsBeingWritten(const std::string& directory);

// The content of the lock file: where the last index of an unfinished segment lies. Only a hint: a
// reader that finds no note, or no index at that place, walks through the segment.
struct IndexNote {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
};
void WriteIndexNote(const UniqueFd& lock, const IndexNote& note);
std::optional<IndexNote> ReadIndexNote(const std::string& directory);

}  // namespace cgdebug::recording
