// reclaim.h: cleans up what dead producers left in /dev/shm.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cgdebug::ring {

// Names of control files that the caller has open: they are left alone, because closing a second
// descriptor of such a file would drop the caller's lock on it. Empty: it has none open.
using IsOpenHere = std::function<bool(const std::string& name)>;

// Removes, of this user's files: segments of dead producers whose last snapshot is older than
// `age_s` seconds and that no daemon has open; control files whose makers died before they named
// them; extents whose control file is gone. Without a daemon nobody else would.
//
// Nothing is mapped: a damaged file is skipped, and cannot bring the caller down.
void ReclaimDeadSegments(double age_s, const IsOpenHere& is_open_here = {}) noexcept;

// The same, however young they are: the segment whose last snapshot is oldest first, until `bytes`
// are free in /dev/shm.
void EvictDeadSegments(std::uint64_t bytes, const IsOpenHere& is_open_here = {}) noexcept;

}  // namespace cgdebug::ring
