// not_seen.h: what this process wanted to see and does not.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "cgdebug/probe.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug {

// Counts in the process, so that nothing is forgotten while there is no segment, and shows it in
// the segment as soon as there is one.
//
// Thread: any. Its lock is the last one taken: callers may hold the probe table's.
class NotSeen {
 public:
  // As CountNotSeen(), but makes no segment.
  void Count(std::string_view name, std::string_view reason, bool is_new_place) noexcept;
  // The probe has a slot.
  void NoteSeen(std::string_view name) noexcept;
  // From here on the segment shows it.
  void ShowIn(layout::NotSeenBlock* shared);
  // Whether there is no segment, and it is time to try again to make one.
  bool WantsSegment();
  NotSeenCounts counts() const;

 private:
  void Show();

  mutable std::mutex mutex_;
  NotSeenCounts counts_;
  std::unordered_set<std::size_t> refused_;  // hashes of names
  std::unordered_set<std::size_t> wanted_;   // those, and of probes that have a slot
  layout::NotSeenBlock* shared_ = nullptr;
  std::chrono::steady_clock::time_point next_attempt_ = {};
};

// Counts a call of a probe that throws. If its caller counts it as well, it counts once.
void CountRefused(std::string_view probe, std::string_view reason) noexcept;

}  // namespace cgdebug
