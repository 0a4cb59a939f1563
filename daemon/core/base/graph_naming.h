// graph_naming.h: the rules of graph_labels.h for one graph and one slot at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "daemon/core/base/graph_labels.h"

namespace cgdebug {

using GraphLabelHolders = std::map<std::string, std::uint64_t>;  // label -> capture id

// The label of the graph that has these slots, which are in graph order and at least one.
// `holders`: the labels that are taken. `slots_of` returns the slots of a graph in graph order, or
// none if it has no slot any more.
std::string LabelOfGraph(
    const std::vector<GraphSlot>& slots, const GraphLabelHolders& holders,
    const std::function<std::vector<GraphSlot>(std::uint64_t graph_id)>& slots_of);

// What tells a slot from others of its name, if these lie in several graphs or have several shapes
// in the slot's graph.
std::string SlotQualifier(std::uint64_t graph_id, std::span<const std::uint64_t> shape,
                          bool has_graphs, bool has_shapes, const GraphLabels& labels);

}  // namespace cgdebug
