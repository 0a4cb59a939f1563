// segment_names.h: what the files of cgdebug in /dev/shm are called.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

inline constexpr std::size_t kUuidHexDigits = 32;

// "cgdebug-<uid>-": of this user's files.
std::string OwnPrefix();

bool IsControlName(std::string_view name);
// A control file that is still being made: "." and its later name.
bool IsTemporaryName(std::string_view name);
// The control file's name when `name` is an extent's, empty otherwise.
std::string_view ControlNameOfExtent(std::string_view name);

// Every file in /dev/shm, sorted; ours and others'.
std::vector<std::string> ListShm();

// Names of the control files of this user's producers in /dev/shm, extents and temporary files left
// out. Anything that carries our prefix and is not shaped like a control file is left out too.
std::vector<std::string> ListSegments();

// Removes the control file and every extent of a segment.
void UnlinkSegment(const std::string& name) noexcept;

}  // namespace cgdebug::ring
