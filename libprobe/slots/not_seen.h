// not_seen.h: what this process wanted to see and does not.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

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
  void Count(std::string_view name, std::string_view reason, bool is_captured) noexcept;
  // A variable of the environment is malformed. Its text is cut to what the segment holds.
  void CountMalformed(std::string_view problem) noexcept;
  // The probe has a slot; `last_order` is the highest order of its rows, or its own.
  void NoteSeen(std::string_view name, std::uint64_t last_order) noexcept;
  // As the function NotWanted().
  void Forget(std::string_view name) noexcept;
  // A row of an op log is here, and no ring has it yet. As it is not shown as missing unless the
  // process ends so, it costs no room in a ring.
  void CountRow() noexcept;
  // So many of these rows have left the process, or another account says why not. A forked child
  // has not counted those of its parent.
  void LetGoOfRows(std::uint64_t count) noexcept;
  // The same when it ends.
  class SentRows {
   public:
    SentRows(NotSeen* account, std::uint64_t count) : account_(account), count_(count) {}
    ~SentRows() { account_->LetGoOfRows(count_); }
    SentRows(const SentRows&) = delete;
    SentRows& operator=(const SentRows&) = delete;

   private:
    NotSeen* account_;
    std::uint64_t count_;
  };
  // From here on the segment shows it.
  void ShowIn(layout::NotSeenBlock* shared);
  // Whether there is no segment, and it is time to try again to make one.
  bool WantsSegment();
  NotSeenCounts counts() const;

 private:
  struct Place {
    std::uint64_t calls = 0;   // that nobody saw; 0: all were seen
    std::uint64_t number = 0;  // of the refused ones, in the order of their first such calls
    std::string reason = {};   // of the first one
    bool is_captured = false;
  };
  using Places = std::map<std::string, Place, std::less<>>;

  void Show();
  // The first refused place that is still wanted becomes the one that is named.
  void NameFirst();

  mutable std::mutex mutex_;
  NotSeenCounts counts_;
  NotSeenCounts gone_;
  std::uint64_t gone_order_ = 0;
  Places places_;                   // that are wanted
  std::uint64_t first_number_ = 0;  // of the place that is named
  std::uint64_t shown_number_ = 0;  // of the one that the segment names
  std::uint64_t newest_order_ = 0;  // of all slots so far
  std::uint64_t rows_begun_ = 0;
  std::uint64_t rows_sent_ = 0;
  layout::NotSeenBlock* shared_ = nullptr;
  std::chrono::steady_clock::time_point next_attempt_ = {};
};

// Counts a call of a probe that throws. If its caller counts it as well, it counts once.
void CountRefused(std::string_view probe, std::string_view reason, bool is_captured) noexcept;

}  // namespace cgdebug
