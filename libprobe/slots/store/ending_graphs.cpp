#include "libprobe/slots/store/ending_graphs.h"

#include <algorithm>

namespace cgdebug {
namespace {

constexpr std::chrono::milliseconds kBetweenLooksAtGraphs{20};

// All leaves of a capture use a word in the memory of the first one. So if user objects hold some
// of them, their end must be waited for as well.
bool HeldByUserObject(const SlotList& slots, const CountedGraph& graph) {
  return std::any_of(slots.begin(), slots.end(), [&](const auto& slot) {
    return slot->registration.graph_id == graph.id() && slot->counted == nullptr &&
           slot->life.held_by_graph() && !slot->life.graph_is_gone();
  });
}

}  // namespace

void EndingGraphs::Look(const SlotList& slots) {
  const auto now = std::chrono::steady_clock::now();
  if (graphs_.empty() || now < next_look_) return;
  next_look_ = now + kBetweenLooksAtGraphs;
  std::erase_if(graphs_, [&](const std::shared_ptr<CountedGraph>& graph) {
    const CountedGraph::End end = graph->Look(now);
    if (end == CountedGraph::End::kUnknown) return true;  // its slots stay as they are
    if (end == CountedGraph::End::kPending || HeldByUserObject(slots, *graph)) return false;
    for (const auto& slot : slots) {
      if (slot->counted == graph) slot->life.GraphIsGone();
    }
    return true;
  });
}

}  // namespace cgdebug
