#include "client/analysis/ops/trails.h"

#include "client/analysis/ops/op_log.h"

namespace cgdebug::analysis {

Passed PassedAt(const source::Slot& slot) {
  const OpText* const text = slot.op.row();
  return {.name = source::SlotName(slot),
          .order = slot.order,
          .graph_id = slot.graph_id,
          .graph = slot.graph,
          .number = text ? text->number : 0,
          .site = slot.site,
          .typed = SlotText(slot)};
}

Result<Trails> ReadTrails(source::Source& source,
                          const std::function<bool(const source::Slot&)>& wants) {
  Trails trails;
  for (std::size_t i = 0; i < source.slots().size(); ++i) {
    const source::Slot& slot = source.slots()[i];
    const bool is_in_body = slot.in_body && !slot.counts_calls();
    if (!wants(slot) || is_in_body || slot.op.is_no_row()) continue;
    Passed passed = PassedAt(slot);
    passed.every = slot.every;
    const Result<std::vector<source::Key>> keys = source.Keys(i);
    if (!keys.ok()) return keys.error();
    if (!keys->empty()) {
      const Result<source::Snapshot> newest = source.Get(i, keys->back());
      if (!newest.ok()) return newest.error();
      passed.replay = keys->back().replay;
      passed.last_ns = newest->timestamp_ns;
    }
    trails[source::ProcessOf(slot)].passed.push_back(std::move(passed));
  }
  return trails;
}

}  // namespace cgdebug::analysis
