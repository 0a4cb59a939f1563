// verify_recording.h: every byte of a recording against every check.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/damage.h"

namespace cgdebug::recording {

// Reads every byte of the recording in `directory` and makes every check. `progress` gets how many
// bytes are done, and stops the reading by returning false.
// Fails: as RecordingReader::Open().
Result<std::vector<Damage>> VerifyRecording(
    const std::string& directory, const std::function<bool(std::uint64_t bytes)>& progress = {});

}  // namespace cgdebug::recording
