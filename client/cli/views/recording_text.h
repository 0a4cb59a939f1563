// recording_text.h: recordings of the daemon in words.
#pragma once

#include <string>

#include "client/cli/views/terminal.h"
#include "client/live/recordings.h"

namespace cgdebug::cli {

// The absolute path of the recording `directory`, with .cgrec added if it is missing. If
// `directory` is empty, a new path under $CGDEBUG_DIR or runs, named by the time.
std::string RecordingPath(const std::string& directory);

// The absolute path from the current directory on, if it lies in it: what one would type.
std::string NearPath(const std::string& path);

// "1 024 snapshots of 4 probes, 12.0 MiB, all on the disk"
std::string RecordingText(const live::Recording& recording, const Style& style);

}  // namespace cgdebug::cli
