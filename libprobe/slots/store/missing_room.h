// missing_room.h: shared memory that was not there: until when it is not asked for again, and what
// the daemon is asked to free.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "libprobe/ring/segment/segment_writer.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class MissingRoom {
 public:
  using Clock = std::chrono::steady_clock;

  // Why `bytes` are not even tried: as much was refused a moment ago, and nothing was freed since.
  // nullptr: they are tried.
  const std::string* WhyNot(std::uint64_t bytes) const {
    return bytes >= refused_bytes_ && Clock::now() < refused_until_ ? &reason_ : nullptr;
  }
  void Refused(std::uint64_t bytes, std::string reason) {
    refused_bytes_ = bytes;
    refused_until_ = Clock::now() + kNotAgainFor;
    reason_ = std::move(reason);
  }
  // Something was freed: the next request is tried.
  void Freed() { refused_until_ = {}; }

  // Somebody else has to free as much.
  void Want(std::uint64_t bytes) { wanted_bytes_ = std::max(wanted_bytes_, bytes); }
  // How many bytes the daemon is asked for now. At most once in a while, because it takes the
  // daemon some milliseconds. nullopt: not now.
  std::optional<std::uint64_t> TakeRequest() {
    const auto now = Clock::now();
    if (wanted_bytes_ == 0 || now < next_request_) return std::nullopt;
    pause_ = std::clamp<Clock::duration>(2 * pause_, kBetweenRequests, kLongestBetweenRequests);
    next_request_ = now + pause_;
    Freed();
    return std::exchange(wanted_bytes_, 0) + kRoomBeside;
  }

 private:
  static constexpr std::chrono::milliseconds kNotAgainFor{100};
  static constexpr std::chrono::seconds kBetweenRequests{1};  // at first; then twice as long each
  static constexpr std::chrono::seconds kLongestBetweenRequests{60};
  static constexpr std::uint64_t kRoomBeside = 4u << 20;  // for a control file, and the next slots

  std::uint64_t refused_bytes_ = 0;
  Clock::time_point refused_until_;
  std::string reason_;
  std::uint64_t wanted_bytes_ = 0;  // and nobody has asked for them yet
  Clock::time_point next_request_;
  Clock::duration pause_{0};
};

// Removes what dead jobs left, oldest first: first what no daemon reads, then what the daemon
// keeps. Waits for its answer. Thread: any, without the lock.
void AskForRoom(ring::SegmentWriter* segment, std::uint64_t bytes);

}  // namespace cgdebug
