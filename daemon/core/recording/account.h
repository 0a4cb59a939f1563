// account.h: how much of what a job produced a source has. The only measure of "complete" for live
// jobs, jobs that ended, frozen rings, recordings and merged recordings.
//
//   produced = not_wanted + kept + lost, by cause, + unread
//
// `produced` is never derived from what is there: it is what the job itself counted in the head of
// its ring, within the stretch that the source covers. So nothing can be left out unnoticed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "daemon/core/recording/types.h"

namespace cgdebug::recording {

// The account of one slot, or the sum of several. Units: snapshots.
struct Account {
  std::uint64_t before = 0;    // produced before the stretch begins: never asked for
  std::uint64_t produced = 0;  // within it
  std::uint64_t not_wanted =
      0;                   // of those: left out by a period, a selection or a limit on replays
  std::uint64_t kept = 0;  // of those: the ones that are here, at least their statistics
  std::map<std::string, std::uint64_t> lost;  // by ToText(LossCause)
  std::uint64_t unread = 0;                   // of a live job: not yet read by its daemon
  std::uint64_t without_values = 0;           // of those kept: the ones with statistics only
  bool is_end_known = true;                   // false: more may have been produced than this counts

  std::uint64_t lost_count() const {
    std::uint64_t count = 0;
    for (const auto& [cause, of_cause] : lost) count += of_cause;
    return count;
  }
  void Add(const Account& other) {
    before += other.before;
    produced += other.produced;
    not_wanted += other.not_wanted;
    kept += other.kept;
    for (const auto& [cause, count] : other.lost) lost[cause] += count;
    unread += other.unread;
    without_values += other.without_values;
    is_end_known = is_end_known && other.is_end_known;
  }
};

// "40 produced, 4 kept, 36 missing (no longer kept)"
std::string ToText(const Account& account);

}  // namespace cgdebug::recording
