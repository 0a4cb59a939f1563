// recording_source.h: recordings as sources.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/source/source.h"

namespace cgdebug::source {

// Fails: no recording there, or one of another version.
Result<std::unique_ptr<Source>> OpenRecording(const std::string& directory);

// Opens several as one, for instance one per rank. Description::unread lists `unread` and those
// that cannot be read. Fails: none can be read.
Result<std::unique_ptr<Source>> OpenRecordings(const std::string& folder,
                                               const std::vector<std::string>& directories,
                                               std::vector<std::string> unread = {});

}  // namespace cgdebug::source
