// slot_progress.h: how far one slot is read, and what was lost on the way.
#pragma once

#include <cstdint>

#include "daemon/model/registry.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::ingest {

// All but `consumed` are counts of entries up to there.
struct SlotProgress {
  std::uint64_t consumed = 0;  // ordinal up to which everything is consumed or lost
  std::uint64_t lost = 0;
  std::uint64_t unreported = 0;      // of those lost
  std::uint64_t damaged = 0;         // likewise
  std::uint64_t without_memory = 0;  // likewise
  std::uint64_t at_death = 0;        // begun by a producer that died: not in `lost`
  std::uint64_t bytes = 0;           // of those consumed

  // Counts everything before `first_readable` as overwritten.
  void Lose(std::uint64_t first_readable);
  // With what the producer counts.
  pipeline::Counters Counters(const layout::SlotHead& head_untrusted) const;
};

}  // namespace cgdebug::ingest
