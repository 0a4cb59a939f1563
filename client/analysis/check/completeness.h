// completeness.h: which probes lack a snapshot that they ought to have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/analysis/check/check.h"
#include "client/analysis/check/finding_list.h"
#include "client/analysis/check/scan.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

class Completeness {
 public:
  // Requires: the scan has run. Lifetime: both outlive it.
  Completeness(source::Source& source, const Scan& scan);

  // Adds the probes that have no snapshot though others of their graph have.
  void FindNeverWritten(FindingList* findings);
  // Counts the probes that have a snapshot of one replay, and says which lack one. Looks at every
  // graph of every process, and shows one: that of the first bad snapshot, else the first that
  // lacks something, else the largest.
  void Count(Check* check);

 private:
  // Of the probes of a graph, with those that lack a snapshot.
  struct GraphPresence : Presence {
    std::vector<std::string> absent = {};
  };

  // In `bad_replay`, the replay of the first bad snapshot, if the graph has it; else in its last
  // replay.
  GraphPresence PresenceIn(const std::vector<const Scanned*>& graph,
                           std::optional<std::uint64_t> bad_replay);
  bool IsWanted(std::size_t slot, std::uint64_t replay);
  bool IsOfSeveralShapes(const source::Slot& slot) const;
  // Null if the slot has none.
  const std::vector<source::Gap>* GapsOf(std::size_t slot);

  source::Source& source_;
  const Scan& scan_;
  std::map<std::pair<GraphKey, std::string>, std::size_t> eager_slots_;  // how many of each name
  std::optional<std::map<std::size_t, std::vector<source::Gap>>> gaps_;  // by slot
};

}  // namespace cgdebug::analysis
