// kept_segments.h: the segments that are read, and how long what dead jobs left is kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/ingest/attached_segment.h"

namespace cgdebug::ingest {

struct KeptSegment {
  using Clock = std::chrono::steady_clock;
  std::unique_ptr<AttachedSegment> attached;
  bool checked = false;                                  // whether the job was looked for
  bool found_dead = false;                               // it was dead when it was found
  bool ended = false;                                    // its end was seen
  Clock::time_point expires = Clock::time_point::max();  // set when its job is gone
};

// A dead job's shared memory stays for `keep_dead`, or until others need the room.
//
// Thread: the ingest thread.
class KeptSegments {
 public:
  explicit KeptSegments(std::chrono::nanoseconds keep_dead) : keep_dead_(keep_dead) {}

  // In the order in which they were found.
  std::vector<KeptSegment>& all() { return segments_; }
  const std::vector<KeptSegment>& all() const { return segments_; }
  bool Has(const std::string& name) const;
  // Sees whether its job is gone.
  void Check(KeptSegment* segment);
  void RemoveExpired();
  // Limits what dead jobs hold, and serves jobs that ask for room.
  void Limit();
  void ServeRoomRequests();
  // Removes what dead jobs left.
  void Prune();

 private:
  // Gives back what dead jobs left, oldest first, until `bytes` are free in /dev/shm.
  void MakeRoom(std::uint64_t bytes);
  std::vector<KeptSegment*> DeadWithFiles();

  const std::chrono::nanoseconds keep_dead_;
  std::vector<KeptSegment> segments_;
  KeptSegment::Clock::time_point next_reclaim_ = {};
};

}  // namespace cgdebug::ingest
