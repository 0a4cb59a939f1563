// graph_facts.h: what the census (graph_layout.h) says about the CUDA graphs of a process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/layout/field.h"
#include "proto/layout/graph_layout.h"

namespace cgdebug::layout {

struct GraphFacts {
  std::uint64_t order = 0;
  std::string label;
  std::uint64_t graph_id = 0;
  GraphState state = GraphState::kEmpty;
  std::optional<std::uint64_t> nodes;
  std::optional<std::uint64_t> replays;
  std::uint64_t probes = 0;
  std::uint64_t probe_bytes = 0;
  std::uint64_t alike = 0;
  std::uint64_t alike_gone = 0;
  std::int64_t begun_ns = 0;
  std::int64_t ended_ns = 0;
  std::vector<std::uint64_t> pool;  // two numbers; empty: unknown
  std::string stack;

  // Numbers and names are those of `GraphInfo` in proto/control.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(Field{2, "order"}, self.order);
    visit(Field{4, "graph"}, self.label);
    visit(Field{3, "graph_id"}, self.graph_id);
    visit(Field{1, "state"}, self.state);
    visit(Field{5, "nodes"}, self.nodes);
    visit(Field{6, "replays"}, self.replays);
    visit(Field{7, "probes"}, self.probes);
    visit(Field{8, "probe_bytes"}, self.probe_bytes);
    visit(Field{9, "alike"}, self.alike);
    visit(Field{10, "alike_gone"}, self.alike_gone);
    visit(Field{11, "begun_ns"}, self.begun_ns);
    visit(Field{12, "ended_ns"}, self.ended_ns);
    visit(Field{13, "pool"}, self.pool);
    visit(Field{14, "stack"}, self.stack);
  }
};

// If this many captures each replace the graph of the one before, that looks like a mistake.
inline constexpr std::uint64_t kManyCaptures = 4;

struct GraphCensus {
  std::uint64_t captures = 0;
  std::uint64_t gone = 0;
  std::uint64_t failed = 0;
  std::uint64_t empty = 0;
  std::uint64_t unlisted = 0;
  std::uint64_t unlisted_replays = 0;
  std::vector<GraphFacts> graphs;  // in order of their captures

  // Numbers and names are those of `SessionGraphs` in proto/control.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(Field{5, "captures"}, self.captures);
    visit(Field{6, "gone"}, self.gone);
    visit(Field{7, "failed"}, self.failed);
    visit(Field{8, "empty"}, self.empty);
    visit(Field{9, "unlisted"}, self.unlisted);
    visit(Field{10, "unlisted_replays"}, self.unlisted_replays);
    visit(Field{4, "graphs"}, self.graphs);
  }
};

}  // namespace cgdebug::layout
