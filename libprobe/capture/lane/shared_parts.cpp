#include "libprobe/capture/lane/shared_parts.h"

#include <algorithm>

namespace cgdebug::capture {

bool PartsHere::IsAt(std::uint64_t capture_id, const Position& position) const {
  return capture_id == capture_id_ && position == position_;
}

SharedParts* PartsHere::Find(std::uint64_t capture_id, const Position& position,
                             const SharedParts& wanted) {
  if (!IsAt(capture_id, position)) return nullptr;
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const SharedParts& parts) {
    return parts.data == wanted.data && parts.count == wanted.count &&
           parts.dtype == wanted.dtype && parts.counted == wanted.counted;
  });
  return found == parts_.end() ? nullptr : &*found;
}

void PartsHere::Add(std::uint64_t capture_id, const Position& before, const Position& after,
                    const SharedParts& parts) {
  if (!IsAt(capture_id, before)) parts_.clear();
  capture_id_ = capture_id;
  position_ = after;
  parts_.push_back(parts);
}

}  // namespace cgdebug::capture
