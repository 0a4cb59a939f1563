// finding_filter.h: which events of a run are worth a line by themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/live/events.h"

namespace cgdebug::cli {

// Wants the first snapshot with NaN or Inf, the first failed comparison and the first loss of each
// probe, jobs that died, and what TensorPrint wrote. Of the pages of op logs that hold NaN or Inf
// outside of masks it wants the first of each replay, if its first such row is new in its graph and
// did not inherit a NaN from the replay before; and the first in which one has NaN.
//
// Thread: one at a time.
class FindingFilter {
 public:
  bool Wants(const live::Event& event);

 private:
  bool IsFirst(const std::string& key) { return seen_.insert(key).second; }

  bool WantsPage(const live::Event& page);

  // What was seen of a graph, or of all that runs eagerly.
  struct Log {
    std::uint64_t replay = 0;  // the newest with NaN or Inf
    bool has_nan = false;
  };

  std::map<std::pair<std::string, std::uint64_t>, Log> logs_;
  std::set<std::string> seen_;  // kind, session, and probe or graph and row
};

// How many lines findings get. A NaN spreads to all that comes behind it: the first three of a
// replay have a line each, the others are counted. After a hundred lines all are counted.
//
// Thread: one at a time.
class FindingLines {
 public:
  struct Behind {
    live::Event last;  // of those without a line
    std::size_t count = 0;
  };

  // In the order of the findings. False: counted.
  bool Shows(const live::Event& event);
  // Those that stand behind the three of a replay, of each job whose next finding, if it has one,
  // is `next`. Null: of all jobs.
  std::vector<Behind> TakeBehind(const live::Event* next);
  // Findings behind the hundred lines.
  std::size_t left_out() const { return left_out_; }

 private:
  struct Replay {
    std::string name;
    std::size_t shown = 0;
    Behind behind;
  };

  std::map<std::string, Replay> newest_;  // by session
  std::size_t lines_ = 0;
  std::size_t left_out_ = 0;
};

}  // namespace cgdebug::cli
