#include "daemon/ingest/slot/slot_progress.h"

#include <algorithm>

namespace cgdebug::ingest {

void SlotProgress::Lose(std::uint64_t first_readable) {
  const std::uint64_t count = first_readable - 1 - consumed;
  consumed += count;
  lost += count;
  unreported += count;
}

pipeline::Counters SlotProgress::Counters(const layout::SlotHead& head_untrusted) const {
  pipeline::Counters counters;
  counters.replays = head_untrusted.replay;
  counters.produced = std::max(head_untrusted.accepted, consumed);
  counters.consumed = consumed - lost;
  counters.lost_overwritten = lost - damaged - without_memory;
  counters.lost_damaged = damaged;
  counters.lost_no_memory = without_memory;
  counters.suppressed = head_untrusted.suppressed;
  counters.lost_at_death = at_death;
  counters.overwrote_unread = head_untrusted.overwrote_unread;
  counters.waits = head_untrusted.waits;
  counters.wait_ns = head_untrusted.wait_ns;
  counters.bytes = bytes;
  counters.taken = head_untrusted.taken;
  counters.graph_replays = head_untrusted.graph_replays;
  counters.passed = head_untrusted.passed;
  counters.unchanged = head_untrusted.unchanged;
  return counters;
}

}  // namespace cgdebug::ingest
