#include "libprobe/slots/captured_graphs.h"

namespace cgdebug {
namespace {

constexpr std::size_t kMaxKnownGraphs = 16;

}  // namespace

const CapturedGraphs::Graph& CapturedGraphs::Find(std::uint64_t id) {
  if (graphs_.size() > kMaxKnownGraphs) {
    std::erase_if(graphs_, [&](const auto& item) { return item.first != id; });
  }
  Graph& graph = graphs_[id];
  if (std::string label = TakeLabel(id); !label.empty()) graph.label = std::move(label);
  return graph;
}

void CapturedGraphs::SetPool(CountedGraph* graph, const Pool& pool) {
  std::erase_if(parts_, [](const auto& item) { return item.second.expired(); });
  const auto [known, is_new] = parts_.try_emplace(pool, graph->parts());
  if (!is_new) graph->SharePartsWith(known->second.lock());
}

std::string CapturedGraphs::TakeLabel(std::uint64_t id) {
  const bool is_spent = !label_.scoped && labelled_ != 0 && labelled_ != id;
  if (label_.text.empty() || is_spent) return {};
  labelled_ = id;
  return label_.text;
}

GraphLabel CapturedGraphs::SetLabel(GraphLabel label) {
  const bool is_spent = !label_.scoped && std::exchange(labelled_, 0) != 0;
  GraphLabel before = std::exchange(label_, std::move(label));
  return is_spent ? GraphLabel() : before;
}

}  // namespace cgdebug
