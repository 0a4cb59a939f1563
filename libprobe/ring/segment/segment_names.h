// segment_names.h: what the files of cgdebug in /dev/shm are called.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

inline constexpr std::size_t kUuidHexDigits = 32;

// "cgdebug-<uid>-": how the names of this user's files begin.
std::string OwnPrefix();

bool IsControlName(std::string_view name);
// Whether it names a control file that is still being made: "." and its later name.
bool IsTemporaryName(std::string_view name);
// The control file's name when `name` is an extent's, empty otherwise.
std::string_view ControlNameOfExtent(std::string_view name);

// Every file in /dev/shm, sorted, whoever made it.
std::vector<std::string> ListShm();

// Names of the control files of this user's producers in /dev/shm, without extents and temporary
// files. A name with our prefix that is not shaped like a control file's is left out too.
std::vector<std::string> ListSegments();

// Removes the control file and every extent of a segment.
void UnlinkSegment(const std::string& name) noexcept;

}  // namespace cgdebug::ring
