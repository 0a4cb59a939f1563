// races.h: ops of captured graphs that touch the same bytes with no path between them, as jobs of
// `run --races` found them while they captured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/analysis/ops/graph_notes.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// What is known of the order of the nodes of one graph.
struct GraphOrder : NotedGraph {
  bool is_known = false;
  std::uint64_t nodes = 0;
  std::uint64_t unordered = 0;        // nodes that are not in order with all others
  std::uint64_t unknown = 0;          // of these, those of which nobody knows what bytes they touch
  std::vector<std::string> races;     // sentences
  std::vector<std::string> possible;  // sentences on nodes of which that is not known
  std::vector<std::string> missing;   // why not all is known
};

struct Races : GraphNotes<GraphOrder> {
  bool found() const;
  Outcome outcome() const { return OutcomeOf(found(), complete()); }
};

Races FindRaces(const source::Source& source);

// At most `max_rows` races of a graph.
Answer RacesAnswer(const Races& races, std::size_t max_rows = 10);
Json RacesJson(const source::Source& source, const Races& races);

}  // namespace cgdebug::analysis
