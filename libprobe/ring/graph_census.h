// graph_census.h: writes and reads the table of a process's CUDA graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "proto/layout/graph_facts.h"
#include "proto/layout/graph_layout.h"

namespace cgdebug::ring {

using layout::GraphCensus;
using layout::GraphFacts;

// Reads a table of another process. Trusts nothing in it; entries that change meanwhile again and
// again are left out.
// Requires: `table` has kGraphTableBytes and is aligned to a page.
GraphCensus ReadGraphs(const std::byte* table);

// Shared memory never steers it: it keeps a copy of whatever it needs again.
// Thread: one call at a time (the probe table's mutex), except for the counters of replays.
class GraphCensusWriter {
 public:
  // Requires: `table` has kGraphTableBytes, all zero, and is aligned to a page.
  explicit GraphCensusWriter(std::byte* table);

  // A capture that begins. `counted`: somebody counts its replays (counter()).
  // Returns its order, from 1.
  std::uint64_t Begin(std::uint64_t graph_id, const std::string& label, const std::string& stack,
                      bool counted);
  // All of these do nothing for a graph that has no entry.
  void AddProbe(std::uint64_t graph_id, std::uint64_t bytes, const std::string& label);
  // `nodes`: nullopt if it is not known. `failed`: there is no graph.
  void End(std::uint64_t order, std::optional<std::uint64_t> nodes, bool failed,
           const std::string& label);
  void SetPool(std::uint64_t order, std::uint64_t first, std::uint64_t second);
  void Gone(std::uint64_t order);
  void GoneById(std::uint64_t graph_id);

  // Whether Begin() was called for it, with an entry or without.
  bool Knows(std::uint64_t graph_id) const {
    return unlisted_.contains(graph_id) || FindId(graph_id).has_value();
  }
  // The 64-bit word of the table that counts the replays of this graph; 0 without an entry.
  std::size_t counter(std::uint64_t order) const;
  std::byte* table() const { return reinterpret_cast<std::byte*>(table_); }

 private:
  struct Own {
    layout::GraphState state = layout::GraphState::kEmpty;
    std::uint64_t order = 0;
    std::uint64_t graph_id = 0;
    std::uint64_t version = 0;
    std::uint64_t probes = 0;
    std::uint64_t probe_bytes = 0;
    std::string label;
    std::string stack;
  };
  struct Alike {
    std::uint64_t captured = 0;
    std::uint64_t gone = 0;
  };
  // The place in own_ of the newest graph with that id or order.
  std::optional<std::size_t> FindId(std::uint64_t graph_id) const;
  std::optional<std::size_t> FindOrder(std::uint64_t order) const;
  std::optional<std::size_t> FreeEntry();
  Alike* AlikeOf(const Own& own);
  // Calls `change` on the entry between W1 and W2, and then shows it in its own state.
  template <typename Change>
  void Write(std::size_t index, Change change);

  layout::GraphTable* table_;
  struct {
    std::uint64_t captures = 0;
    std::uint64_t unlisted = 0;
    std::uint64_t failed = 0;
    std::uint64_t empty = 0;
    std::uint64_t gone = 0;
  } counts_;  // as in the table
  std::vector<Own> own_;
  std::unordered_set<std::uint64_t> unlisted_;    // ids of captures for which there was no entry
  std::unordered_map<std::string, Alike> alike_;  // by label and stack
};

}  // namespace cgdebug::ring
