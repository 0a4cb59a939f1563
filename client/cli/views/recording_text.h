// recording_text.h: recordings of the daemon in words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/views/json.h"

namespace cgdebug::cli {

// The absolute path of the recording `directory`, with .cgrec added if it is missing. If
// `directory` is empty, a new path under $CGDEBUG_DIR or runs, named by the time.
std::string RecordingPath(const std::string& directory);

// The absolute path from the current directory on, if it lies in it: what one would type.
std::string NearPath(const std::string& path);

// "1 024 snapshots of 4 probes, 12.0 MiB, all on the disk"
std::string RecordingText(const live::Recording& recording, const Style& style);

// Says how it ended and what to type next; `why_missing` is why snapshots are missing, and
// what helps. Returns 0, or 3 if something it wanted is missing.
int ReportRecording(const Context& context, const live::Recording& recording,
                    std::string_view why_missing =
                        "the job was faster than this machine writes. Record fewer probes "
                        "(--probes), or let the job wait: --lossless");

}  // namespace cgdebug::cli
