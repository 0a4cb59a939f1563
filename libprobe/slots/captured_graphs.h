// captured_graphs.h: the graphs that are being captured: their names, the serial that their slots
// share, and who counts their launches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/counted_graph.h"
#include "libprobe/ring/serial.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class CapturedGraphs {
 public:
  struct Graph {
    std::shared_ptr<ring::SharedSerial> serial = std::make_shared<ring::SharedSerial>();
    std::string label;
  };

  // The graph with this capture id, which may take the label that is set. Valid until the next
  // call.
  const Graph& Find(std::uint64_t id);
  // From here until Uncount(), slots of this capture belong to a graph whose launches are counted.
  void Count(const std::shared_ptr<CountedGraph>& graph) { counted_[graph->id()] = graph; }
  void Uncount(std::uint64_t id) { counted_.erase(id); }
  std::shared_ptr<CountedGraph> FindCounted(std::uint64_t id) const {
    const auto found = counted_.find(id);
    return found == counted_.end() ? nullptr : found->second;
  }
  // The memory pool of torch that the graph has its memory from. Requires: not {0, 0}.
  using Pool = std::pair<std::uint64_t, std::uint64_t>;
  void SetPool(CountedGraph* graph, const Pool& pool);

  // The label that is set for the graph with this capture id; empty if there is none, or another
  // graph took it.
  std::string TakeLabel(std::uint64_t id);
  // As cgdebug::SetGraphLabel(). Requires: a checked label.
  GraphLabel SetLabel(GraphLabel label);

 private:
  std::unordered_map<std::uint64_t, Graph> graphs_;
  std::unordered_map<std::uint64_t, std::shared_ptr<CountedGraph>> counted_;
  std::map<Pool, std::weak_ptr<capture::PoolParts>> parts_;
  GraphLabel label_;
  std::uint64_t labelled_ = 0;  // the graph that took label_
};

}  // namespace cgdebug
