// verify_recording.h: every byte of a recording against every check.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/damage.h"

namespace cgdebug::recording {

// Reads every byte of the recording in `directory` and makes every check. Calls `on_snapshot`
// behind each snapshot. Fails: as RecordingReader::Open().
Result<std::vector<Damage>> VerifyRecording(const std::string& directory,
                                            const std::function<void()>& on_snapshot = {});

}  // namespace cgdebug::recording
