// slot_names.h: what the graphs and slots of a session are called while they come and go.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/core/base/graph_labels.h"
#include "daemon/core/base/graph_naming.h"
#include "daemon/model/identity.h"

namespace cgdebug::pipeline {

// The names of graph_labels.h. A label that was given stays taken, and its graph keeps it, when
// slots are removed.
//
// A session has tens of thousands of slots, most of graphs that are gone. What it costs to add, to
// remove or to name a slot depends on the slots of its graph, and of graphs captured after it, but
// not on how many there are of others.
//
// Thread: one at a time.
class SlotNames {
 public:
  // Requires: no slot with the same index and generation is there.
  void Add(SlotPtr slot);
  // Requires: the slot is there.
  void Remove(const SlotPtr& slot);

  // Empty for eager calls and unknown graphs.
  std::string LabelOf(std::uint64_t graph_id);
  // As SlotQualifiers(). Requires: the slot is there.
  std::string QualifierOf(const SlotIdentity& slot);

  // How many slots were looked at to name graphs.
  std::uint64_t looked_at() const { return looked_at_; }

 private:
  struct ByOrder {
    bool operator()(const SlotPtr& a, const SlotPtr& b) const;
  };
  // Slots of one graph follow one another; among them those of one shape.
  struct ByGraph {
    using is_transparent = void;
    bool operator()(const SlotPtr& a, const SlotPtr& b) const;
    bool operator()(const SlotPtr& a, std::uint64_t graph_id) const;
    bool operator()(std::uint64_t graph_id, const SlotPtr& b) const;
  };
  using Graph = std::set<SlotPtr, ByOrder>;
  using Name = std::tuple<std::string, std::uint32_t>;  // of the probe; invocation
  using Alike = std::set<SlotPtr, ByGraph>;             // slots of one name

  static std::uint64_t FirstOf(const Graph& graph);
  std::vector<GraphSlot> SlotsOf(std::uint64_t graph_id);
  // Labels the graphs that may lack a label or have one that is out of date.
  void NameGraphs();

  std::map<std::uint64_t, Graph> graphs_;                      // by capture id; none is empty
  std::set<std::pair<std::uint64_t, std::uint64_t>> in_turn_;  // FirstOf() and capture id of those
  std::map<Name, Alike, std::less<>> by_name_;                 // none is empty
  GraphLabels labels_;  // also of graphs that have no slot any more
  GraphLabelHolders holders_;
  // FirstOf() the first graph that was changed since graphs were named. Its label, and those of
  // graphs after it, may be out of date.
  std::optional<std::uint64_t> changed_from_;
  std::uint64_t looked_at_ = 0;
};

}  // namespace cgdebug::pipeline
