#include "daemon/base/graph_labels.h"

#include <algorithm>
#include <cstddef>

namespace cgdebug {
namespace {

using Graph = std::vector<GraphSlot>;  // slots of one capture, in graph order

bool IsSame(const GraphSlot& a, const GraphSlot& b) {
  return a.probe == b.probe && a.invocation == b.invocation && std::ranges::equal(a.shape, b.shape);
}

// The first slot of `graph` that is not as the one at its place in `other`; null: there is none.
const GraphSlot* FirstDifference(const Graph& graph, const Graph& other) {
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (i >= other.size() || !IsSame(graph[i], other[i])) return &graph[i];
  }
  return nullptr;
}

// A probe's name as part of a label, in which '@' and '#' have a meaning.
std::string Plain(std::string_view name) {
  std::string text(name);
  std::ranges::replace_if(
      text, [](char c) { return c == '@' || c == '#'; }, '_');
  return text;
}

std::vector<Graph> GraphsOf(std::vector<GraphSlot> slots) {
  std::erase_if(slots, [](const GraphSlot& slot) { return slot.capture_id == 0; });
  std::ranges::stable_sort(slots, {}, &GraphSlot::order);
  std::vector<Graph> graphs;
  std::map<std::uint64_t, std::size_t> places;
  for (const GraphSlot& slot : slots) {
    const auto [found, is_new] = places.try_emplace(slot.capture_id, graphs.size());
    if (is_new) graphs.emplace_back();
    graphs[found->second].push_back(slot);
  }
  return graphs;
}

std::string GivenLabel(const Graph& graph) {
  for (const GraphSlot& slot : graph) {
    if (!slot.label.empty()) return std::string(slot.label);
  }
  return "";
}

}  // namespace

std::string ShapeLabel(std::span<const std::uint64_t> shape) {
  if (shape.empty()) return "scalar";
  std::string text;
  for (const std::uint64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

GraphLabels NameGraphsOf(std::vector<GraphSlot> slots, GraphLabels before) {
  const std::vector<Graph> graphs = GraphsOf(std::move(slots));
  for (const Graph& graph : graphs) before.erase(graph.front().capture_id);
  std::map<std::string, const Graph*> holders;  // by label; null: a graph that is gone
  for (const auto& [id, label] : before) holders[label] = nullptr;
  GraphLabels labels = std::move(before);
  for (const Graph& graph : graphs) {
    std::string label = GivenLabel(graph);
    const bool is_given = !label.empty();
    if (!is_given) label = ShapeLabel(graph.front().shape);
    const auto holder = holders.find(label);
    if (!is_given && holder != holders.end() && holder->second != nullptr) {
      if (const GraphSlot* slot = FirstDifference(graph, *holder->second)) {
        label += "," + Plain(slot->probe) + "=" + ShapeLabel(slot->shape);
      }
    }
    const std::string base = label;
    for (int n = 2; holders.contains(label); ++n) label = base + "#" + std::to_string(n);
    holders[label] = &graph;
    labels[graph.front().capture_id] = label;
  }
  return labels;
}

}  // namespace cgdebug
