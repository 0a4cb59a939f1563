#include "libprobe/slots/store/missing_room.h"

#include "libprobe/ring/segment/reclaim.h"

namespace cgdebug {
namespace {

constexpr std::chrono::milliseconds kRoomPatience{500};

}  // namespace

void AskForRoom(ring::SegmentWriter* segment, std::uint64_t bytes) {
  const std::string own = segment == nullptr ? "" : segment->name();
  ring::EvictDeadSegments(bytes, [&own](const std::string& name) { return name == own; });
  if (segment == nullptr || ring::GetShmSpace().free_bytes >= static_cast<double>(bytes)) return;
  segment->AskForRoom(bytes, kRoomPatience);
}

}  // namespace cgdebug
