// recordings.h: what the commands that act on whole recordings share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/cli/context.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// "1 204 snapshots".
std::string SnapshotsText(std::uint64_t count);

// Commands that act on whole recordings refuse --session and --ranks. 0, or what to exit with.
int RefuseSelection(const Context& context, const char* verb);

// Opens every recording that the paths name; a folder stands for the recordings in it. 0, or what
// to exit with.
int OpenRecordings(Context& context, const std::vector<std::string>& paths,
                   std::vector<std::unique_ptr<source::Source>>* sources);

// Fails: it is not a recording, is being written, or its folder has other files as well.
// With `force`, removes the recording at `path` if there is one; anything else stays.
// Fails: as RemoveRecording().
Result<void> MakeRoom(const std::string& path, bool force);
Result<void> RemoveRecording(const std::string& path);
// Likewise, also if not even a first segment was written.
Result<void> RemoveFilesOf(const std::string& path);

}  // namespace cgdebug::cli
