// staleness.h: which probes changed when, and which stopped changing while an earlier one did not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/source/source.h"

namespace cgdebug::analysis {

struct Scanned;
class FindingList;

// Slots that were captured together share their replays. Eager calls do not: each slot counts its
// own, and only their serials say what came before what.
using GraphKey = std::tuple<std::string, int, std::uint64_t>;  // session, rank, capture
inline GraphKey GraphOf(const source::Slot& slot) {
  return {slot.session, slot.rank, slot.graph_id};
}

// A snapshot that equals the one before it.
struct Unchanged {
  std::uint64_t replay = 0;
  std::uint64_t serial = 0;
  std::uint64_t serial_before = 0;
};

class Staleness {
 public:
  explicit Staleness(source::Source& source) : source_(source) {}

  // Requires: `before` is the snapshot of the slot that came right before `now`.
  void Note(const source::Snapshot& before, const source::Snapshot& now, Scanned* scanned);
  // Nothing more is noted.
  void Finish();
  // Adds a finding for each probe that did not change though one before it did.
  void Find(const std::vector<Scanned>& probes, FindingList* findings) const;

 private:
  bool ChangedBefore(const source::Slot& slot, const Unchanged& one) const;

  source::Source& source_;
  // For each replay of a graph, the first probe whose value changed.
  std::map<std::pair<GraphKey, std::uint64_t>, std::uint64_t> first_changed_;
  struct EagerChange {
    std::uint64_t serial = 0;
    std::size_t slot = 0;
  };
  std::map<GraphKey, std::vector<EagerChange>> eager_changes_;  // by serial
};

}  // namespace cgdebug::analysis
