// shown_counters.h: the counters of one slot as the registry shows them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/model/registry.h"

namespace cgdebug::ingest {

// The rows of an op log have the counters of their slot in common. There may be thousands, and most
// looks find nothing new, so the registry is told only of what changed.
//
// Thread: the ingest thread.
class ShownCounters {
 public:
  // `registry` outlives this. `rows`: those that clients see; of an op log, or the slot alone.
  ShownCounters(pipeline::Registry* registry, std::vector<pipeline::SlotPtr> rows,
                bool are_of_op_log)
      : registry_(registry), rows_(std::move(rows)), are_of_op_log_(are_of_op_log) {}

  struct State {
    pipeline::Counters counters;
    bool retired = false;
    std::int64_t last_timestamp_ns = 0;  // of the newest snapshot, in the host's time
    std::uint64_t reached = 0;           // SlotHead::reached
    std::int64_t reached_ns = 0;         // in the host's time
  };
  // Shows `state`, if it differs from what is shown.
  void Show(const State& state);
  // What is shown; all 0 if nothing was.
  const State& state() const { return shown_; }

 private:
  pipeline::Reached ReachedBy(const pipeline::SlotIdentity& row) const;

  pipeline::Registry* registry_;
  std::vector<pipeline::SlotPtr> rows_;
  bool are_of_op_log_;
  State shown_;
  bool shows_any_ = false;
};

}  // namespace cgdebug::ingest
