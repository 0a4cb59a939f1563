// reclaim.h: cleans up what dead producers left in /dev/shm.
#pragma once

namespace cgdebug::ring {

// Removes, of this user's files: segments of dead producers whose last snapshot is older than
// `age_s` seconds and that no daemon has open; control files whose makers died before they named
// them; extents whose control file is gone. Without a daemon nobody else would.
//
// Nothing is mapped: a damaged file is skipped, and cannot bring the caller down.
//
// Requires: the caller has no segment of its own yet (opening it again would drop its lock).
void ReclaimDeadSegments(double age_s) noexcept;

}  // namespace cgdebug::ring
