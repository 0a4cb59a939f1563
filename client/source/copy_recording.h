// copy_recording.h: writes what can be read of recordings into a new one: to repair and extract.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "daemon/core/base/result.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::source {

struct CopyOptions {
  // Empty: every slot.
  std::function<bool(const recording::Slot& slot, const recording::Session& session)> wants;
  std::uint64_t first_replay = 1;
  std::uint64_t last_replay = std::numeric_limits<std::uint64_t>::max();
  bool dry_run = false;                // counts only
  std::function<bool()> goes_on = {};  // asked before each snapshot; false ends the copy
};

struct CopyResult {
  std::uint64_t snapshots = 0;
  std::uint64_t slots = 0;
  std::uint64_t damaged = 0;  // snapshots that could not be read; losses in the copy
  std::uint64_t lost = 0;     // losses taken over
  bool is_nothing = false;    // no slot is wanted, or no snapshot is in the range of replays
};

// A snapshot that several recordings have is written once; a snapshot lost in one recording but
// present in another is not lost. The copy is `complete()` only if all its sources are. If the
// result `is_nothing`, nothing is written.
// Fails: `to` exists, cannot be written, or the copy was ended; what was written stays there.
Result<CopyResult> CopyRecordings(const std::vector<const recording::RecordingReader*>& from,
                                  const std::string& to, const CopyOptions& options);

}  // namespace cgdebug::source
