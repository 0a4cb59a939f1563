// finding_filter.h: which events of a run are worth a line by themselves.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "client/live/events.h"

namespace cgdebug::cli {

// Wants the first snapshot with NaN or Inf, the first failed comparison and the first loss of each
// probe, jobs that died, and what TensorPrint wrote. Of the pages of op logs that hold NaN or Inf
// it wants each whose first such row is new in its graph, the first in which not all of them are
// masks, and the first in which one has NaN. The number of all but what TensorPrint wrote is
// bounded.
//
// Thread: one at a time.
class FindingFilter {
 public:
  bool Wants(const live::Event& event);
  // Findings that the bound left out.
  std::size_t left_out() const { return left_out_; }

 private:
  bool IsFirst(const std::string& key);

  std::set<std::string> seen_;  // kind, session, and probe or graph and row
  std::size_t left_out_ = 0;
};

}  // namespace cgdebug::cli
