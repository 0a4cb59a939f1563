// ending_graphs.h: graphs whose owners are gone, until their last launches have finished.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "libprobe/capture/graph/counted_graph.h"
#include "libprobe/slots/store/all_slots.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class EndingGraphs {
 public:
  void Add(std::shared_ptr<CountedGraph> graph) { graphs_.push_back(std::move(graph)); }
  // Tells the slots of the graphs that have ended. Does nothing if it looked a moment ago.
  void Look(const SlotList& slots);

 private:
  std::vector<std::shared_ptr<CountedGraph>> graphs_;
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace cgdebug
