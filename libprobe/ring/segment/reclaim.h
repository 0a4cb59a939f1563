// reclaim.h: cleans up what dead producers left in /dev/shm.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cgdebug::ring {

// Tells whether the caller has this control file open. Such files are left alone: closing a second
// descriptor would drop the caller's lock. Empty: it has none open.
using IsOpenHere = std::function<bool(const std::string& name)>;

// Removes these files of this user: segments of dead producers whose last snapshot is older than
// `age_s` seconds and that no daemon has open; control files whose makers died before they named
// them; extents whose control file is gone. Without a daemon nobody else would remove them.
//
// Maps nothing: a damaged file is skipped and cannot crash the caller.
void ReclaimDeadSegments(double age_s, const IsOpenHere& is_open_here = {}) noexcept;

// The same regardless of age: removes the segment whose last snapshot is oldest first, until
// `bytes` are free in /dev/shm.
void EvictDeadSegments(std::uint64_t bytes, const IsOpenHere& is_open_here = {}) noexcept;

}  // namespace cgdebug::ring
