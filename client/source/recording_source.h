// recording_source.h: recordings as sources.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/source/source.h"

namespace cgdebug::source {

// Fails: no recording there, or one of another version.
Result<std::unique_ptr<Source>> OpenRecording(const std::string& directory);

// Several as one, for instance one a rank. What cannot be read is told in Description::unread.
// Fails: none can be read.
Result<std::unique_ptr<Source>> OpenRecordings(const std::string& folder,
                                               const std::vector<std::string>& directories);

}  // namespace cgdebug::source
