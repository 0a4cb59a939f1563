// recordings.h: what the commands that act on whole recordings share.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/context.h"
#include "client/live/recordings.h"
#include "client/source/source.h"

namespace cgdebug::cli {

// "1 204 snapshots".
std::string SnapshotsText(std::uint64_t count);

// Says how it ended and what to type next (`next`; empty: check); `why_missing` is why snapshots
// are missing, and what helps. Returns 0, or 3 if something it wanted is missing.
int ReportRecording(const Context& context, const live::Recording& recording,
                    std::string_view why_missing =
                        "the job was faster than this machine writes. Record fewer probes "
                        "(--probes), or let the job wait: --lossless",
                    const std::string& next = "");

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
