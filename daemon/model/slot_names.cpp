#include "daemon/model/slot_names.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace cgdebug::pipeline {

bool SlotNames::ByOrder::operator()(const SlotPtr& a, const SlotPtr& b) const {
  return std::tie(a->registration.order, a->index, a->generation) <
         std::tie(b->registration.order, b->index, b->generation);
}

bool SlotNames::ByName::operator()(const SlotPtr& a, const SlotPtr& b) const {
  const auto key = [](const SlotIdentity& slot) {
    return std::tie(slot.probe, slot.registration.invocation, slot.registration.graph_id,
                    slot.shape, slot.index, slot.generation);
  };
  return key(*a) < key(*b);
}

bool SlotNames::ByName::operator()(const SlotPtr& a, const Alike& b) const {
  const layout::SlotFacts& registration = a->registration;
  if (const int order = a->probe.compare(b.probe); order != 0) return order < 0;
  if (registration.invocation != b.invocation) return registration.invocation < b.invocation;
  return b.graph_id && registration.graph_id < *b.graph_id;
}

bool SlotNames::ByName::operator()(const Alike& a, const SlotPtr& b) const {
  const layout::SlotFacts& registration = b->registration;
  if (const int order = b->probe.compare(a.probe); order != 0) return order > 0;
  if (registration.invocation != a.invocation) return a.invocation < registration.invocation;
  return a.graph_id && *a.graph_id < registration.graph_id;
}

std::uint64_t SlotNames::FirstOf(const Graph& graph) {
  return (*graph.begin())->registration.order;
}

void SlotNames::Add(SlotPtr slot) {
  by_name_.insert(slot);
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
  by_name_.erase(slot);
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
  Alike alike{slot.probe, slot.registration.invocation};
  // Not equal_range(), which goes from one to the next.
  const auto first = by_name_.lower_bound(alike), last = by_name_.upper_bound(alike);
  alike.graph_id = graph_id;
  const auto first_here = by_name_.lower_bound(alike), last_here = by_name_.upper_bound(alike);
  const bool has_graphs =
      (*first)->registration.graph_id != (*std::prev(last))->registration.graph_id;
  const bool has_shapes = (*first_here)->shape != (*std::prev(last_here))->shape;
  return SlotQualifier(graph_id, slot.shape, has_graphs, has_shapes, labels_);
}

}  // namespace cgdebug::pipeline
