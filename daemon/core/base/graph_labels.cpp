#include "daemon/core/base/graph_labels.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <set>
#include <utility>

#include "daemon/core/base/graph_naming.h"

namespace cgdebug {
namespace {

using Graph = std::vector<GraphSlot>;  // slots of one capture, in graph order

bool IsSame(const GraphSlot& a, const GraphSlot& b) {
  return a.probe == b.probe && a.invocation == b.invocation && std::ranges::equal(a.shape, b.shape);
}

// The first slot of `graph` that differs from the slot at the same place in `other`, or null.
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
  std::erase_if(slots, [](const GraphSlot& slot) { return slot.graph_id == 0; });
  std::ranges::stable_sort(slots, {}, &GraphSlot::order);
  std::vector<Graph> graphs;
  std::map<std::uint64_t, std::size_t> places;
  for (const GraphSlot& slot : slots) {
    const auto [found, is_new] = places.try_emplace(slot.graph_id, graphs.size());
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

std::vector<std::string> SlotQualifiers(const std::vector<GraphSlot>& slots,
                                        const GraphLabels& labels) {
  struct OfName {
    std::set<std::uint64_t> captures;
    std::map<std::uint64_t, std::set<std::vector<std::uint64_t>>> shapes;  // by capture
  };
  std::map<std::pair<std::string_view, std::uint32_t>, OfName> names;
  for (const GraphSlot& slot : slots) {
    OfName& name = names[{slot.probe, slot.invocation}];
    name.captures.insert(slot.graph_id);
    name.shapes[slot.graph_id].emplace(slot.shape.begin(), slot.shape.end());
  }
  std::vector<std::string> qualifiers;
  for (const GraphSlot& slot : slots) {
    const OfName& name = names[{slot.probe, slot.invocation}];
    qualifiers.push_back(SlotQualifier(slot.graph_id, slot.shape, name.captures.size() > 1,
                                       name.shapes.at(slot.graph_id).size() > 1, labels));
  }
  return qualifiers;
}

std::string SlotQualifier(std::uint64_t graph_id, std::span<const std::uint64_t> shape,
                          bool has_graphs, bool has_shapes, const GraphLabels& labels) {
  std::string text = has_shapes ? ShapeSelector(shape) : "";
  if (!has_graphs) return text;
  const auto label = labels.find(graph_id);
  return text + "@g:" +
         (label != labels.end() ? label->second
          : graph_id == 0       ? "eager"
                                : std::to_string(graph_id));
}

bool WhichSlots::Matches(std::uint64_t graph_id, std::string_view label,
                         std::span<const std::uint64_t> of_shape) const {
  if (shape && !std::ranges::equal(*shape, of_shape)) return false;
  if (graph.empty()) return true;
  if (graph_id == 0) return graph == "eager";
  return graph == label || graph == std::to_string(graph_id);
}

std::string WhichSlots::Text() const {
  return (shape ? ShapeSelector(*shape) : "") + (graph.empty() ? "" : "@g:" + graph);
}

std::string AmbiguousReplay(const std::vector<std::string>& names, std::int64_t replay,
                            const std::string& source, const std::string& among) {
  if (names.size() < 2) return "";
  constexpr std::size_t kNamed = 3;
  const bool are_graphs = names.front().find("@g:") != std::string::npos;
  const std::string at = "@" + std::to_string(replay);
  std::string text =
      std::to_string(names.size()) + (are_graphs ? " graphs" : " shapes") + " have " + at + ": ";
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    text += (i == 0 ? "" : ", ") + names[i] + at;
  }
  if (names.size() > kNamed) text += " and " + std::to_string(names.size() - kNamed) + " more";
  return text + ". Type for example: cgdebug-cli show '" + source + names.front() + at + "'" +
         among;
}

std::string ShapeSelector(std::span<const std::uint64_t> shape) {
  std::string text;
  for (const std::uint64_t size : shape) text += (text.empty() ? "" : ",") + std::to_string(size);
  return "{" + text + "}";
}

std::optional<std::vector<std::uint64_t>> ParseShape(std::string_view text) {
  const bool has_brackets = text.size() >= 2 && ((text.front() == '[' && text.back() == ']') ||
                                                 (text.front() == '{' && text.back() == '}'));
  if (has_brackets) text = text.substr(1, text.size() - 2);
  std::vector<std::uint64_t> shape;
  if (text == "scalar" || (text.empty() && has_brackets)) return shape;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    while (at != end && *at == ' ') ++at;
    std::uint64_t size = 0;
    const auto parsed = std::from_chars(at, end, size);
    if (parsed.ec != std::errc()) return std::nullopt;
    shape.push_back(size);
    at = parsed.ptr;
    if (at == end) return shape;
    if (*at != ',' && *at != 'x') return std::nullopt;
    ++at;
  }
}

std::string ShapeLabel(std::span<const std::uint64_t> shape) {
  if (shape.empty()) return "scalar";
  std::string text;
  for (const std::uint64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

std::string LabelOfGraph(const std::vector<GraphSlot>& slots, const GraphLabelHolders& holders,
                         const std::function<std::vector<GraphSlot>(std::uint64_t)>& slots_of) {
  std::string label = GivenLabel(slots);
  if (label.empty()) {
    label = ShapeLabel(slots.front().shape);
    const auto holder = holders.find(label);
    const Graph other = holder == holders.end() ? Graph() : slots_of(holder->second);
    const GraphSlot* slot = other.empty() ? nullptr : FirstDifference(slots, other);
    if (slot != nullptr) label += "," + Plain(slot->probe) + "=" + ShapeLabel(slot->shape);
  }
  const std::string base = label;
  for (int n = 2; holders.contains(label); ++n) label = base + "#" + std::to_string(n);
  return label;
}

GraphLabels NameGraphsOf(std::vector<GraphSlot> slots, GraphLabels before) {
  const std::vector<Graph> graphs = GraphsOf(std::move(slots));
  std::map<std::uint64_t, const Graph*> by_id;
  for (const Graph& graph : graphs) {
    by_id[graph.front().graph_id] = &graph;
    before.erase(graph.front().graph_id);
  }
  const auto slots_of = [&](std::uint64_t graph_id) {
    const auto found = by_id.find(graph_id);
    return found == by_id.end() ? Graph() : *found->second;
  };
  GraphLabelHolders holders;
  for (const auto& [id, label] : before) holders[label] = id;
  GraphLabels labels = std::move(before);
  for (const Graph& graph : graphs) {
    const std::uint64_t id = graph.front().graph_id;
    const std::string& label = labels[id] = LabelOfGraph(graph, holders, slots_of);
    holders[label] = id;
  }
  return labels;
}

}  // namespace cgdebug
