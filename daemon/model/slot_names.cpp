#include "daemon/model/slot_names.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace cgdebug::pipeline {

bool SlotNames::ByOrder::operator()(const SlotPtr& a, const SlotPtr& b) const {
  return std::tie(a->registration.order, a->index, a->generation) <
         std::tie(b->registration.order, b->index, b->generation);
}

bool SlotNames::ByGraph::operator()(const SlotPtr& a, const SlotPtr& b) const {
  const auto key = [](const SlotIdentity& slot) {
    return std::tie(slot.registration.graph_id, slot.shape, slot.index, slot.generation);
  };
  return key(*a) < key(*b);
}

bool SlotNames::ByGraph::operator()(const SlotPtr& a, std::uint64_t graph_id) const {
  return a->registration.graph_id < graph_id;
}

bool SlotNames::ByGraph::operator()(std::uint64_t graph_id, const SlotPtr& b) const {
  return graph_id < b->registration.graph_id;
}

std::uint64_t SlotNames::FirstOf(const Graph& graph) {
  return (*graph.begin())->registration.order;
}

void SlotNames::Add(SlotPtr slot) {
  by_name_[{slot->probe, slot->registration.invocation}].insert(slot);
  const std::uint64_t id = slot->registration.graph_id;
  if (id == 0) return;
  Graph& graph = graphs_[id];
  if (!graph.empty()) in_turn_.erase({FirstOf(graph), id});
  graph.insert(std::move(slot));
  in_turn_.insert({FirstOf(graph), id});
  changed_from_ = std::min(changed_from_.value_or(UINT64_MAX), FirstOf(graph));
}

void SlotNames::Remove(const SlotPtr& slot) {
  const std::uint64_t id = slot->registration.graph_id;
  if (const auto found = graphs_.find(id); found != graphs_.end()) {
    Graph& graph = found->second;
    if (changed_from_ && FirstOf(graph) >= *changed_from_) NameGraphs();  // the label stays taken
    in_turn_.erase({FirstOf(graph), id});
    graph.erase(slot);
    if (graph.empty()) {
      graphs_.erase(found);
    } else {
      in_turn_.insert({FirstOf(graph), id});
    }
  }
  const auto named = by_name_.find(std::tie(slot->probe, slot->registration.invocation));
  named->second.erase(slot);
  if (named->second.empty()) by_name_.erase(named);
}

std::vector<GraphSlot> SlotNames::SlotsOf(std::uint64_t graph_id) {
  std::vector<GraphSlot> slots;
  const auto found = graphs_.find(graph_id);
  if (found == graphs_.end()) return slots;
  looked_at_ += found->second.size();
  for (const SlotPtr& slot : found->second) {
    slots.push_back({.graph_id = graph_id,
                     .order = slot->registration.order,
                     .probe = slot->probe,
                     .invocation = slot->registration.invocation,
                     .shape = slot->shape,
                     .label = slot->graph_label});
  }
  return slots;
}

void SlotNames::NameGraphs() {
  if (!changed_from_) return;
  const auto first = in_turn_.lower_bound({*changed_from_, 0});
  for (auto one = first; one != in_turn_.end(); ++one) {
    const auto label = labels_.find(one->second);
    if (label == labels_.end()) continue;
    holders_.erase(label->second);
    labels_.erase(label);
  }
  const auto slots_of = [this](std::uint64_t graph_id) { return SlotsOf(graph_id); };
  for (auto one = first; one != in_turn_.end(); ++one) {
    std::string label = LabelOfGraph(SlotsOf(one->second), holders_, slots_of);
    holders_[label] = one->second;
    labels_[one->second] = std::move(label);
  }
  changed_from_.reset();
}

std::string SlotNames::LabelOf(std::uint64_t graph_id) {
  NameGraphs();
  const auto label = labels_.find(graph_id);
  return label == labels_.end() ? "" : label->second;
}

std::string SlotNames::QualifierOf(const SlotIdentity& slot) {
  NameGraphs();
  const std::uint64_t graph_id = slot.registration.graph_id;
  const Alike& alike = by_name_.find(std::tie(slot.probe, slot.registration.invocation))->second;
  // Not equal_range(), which goes from one to the next.
  const auto first_here = alike.lower_bound(graph_id), last_here = alike.upper_bound(graph_id);
  const bool has_graphs =
      (*alike.begin())->registration.graph_id != (*alike.rbegin())->registration.graph_id;
  const bool has_shapes = (*first_here)->shape != (*std::prev(last_here))->shape;
  return SlotQualifier(graph_id, slot.shape, has_graphs, has_shapes, labels_);
}

}  // namespace cgdebug::pipeline
