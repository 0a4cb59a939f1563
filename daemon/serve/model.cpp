#include "daemon/serve/model.h"

#include <optional>

#include "daemon/serve/messages.h"

namespace cgdebug::serve {

using pipeline::SessionRecord;
using pipeline::SlotRecord;

namespace {

// Says what memory keeps of it.
void SetKept(const pipeline::SnapshotStore& store, const pipeline::SlotPtr& slot,
             std::optional<answers::FirstNonfinite>* first) {
  using Kept = answers::FirstNonfinite::Kept;
  if (!*first) return;
  const auto stored = store.Find(slot, (*first)->replay, (*first)->serial);
  (*first)->kept = !stored                      ? Kept::kNothing
                   : stored->payload == nullptr ? Kept::kStatistics
                                                : Kept::kValues;
}

}  // namespace

answers::Session SessionNow(const SessionRecord& record, const Model& model) {
  answers::Session session = SessionOf(record, *model.registry);
  session.counters.kept = model.store->CountOf(record.session);
  session.nonfinite_let_go = model.store->NotFiniteLetGo(record.session);
  // The daemon keeps nothing of a slot that is no longer shown.
  SetKept(*model.store, record.first_nan.slot, &session.first_nan);
  SetKept(*model.store, record.first_inf.slot, &session.first_inf);
  return session;
}

answers::Probe ProbeNow(const SlotRecord& record, const Model& model, bool with_last_stats) {
  answers::Probe probe = ProbeOf(record, *model.registry, with_last_stats);
  probe.counters.kept = model.store->CountOf(record.slot);
  SetKept(*model.store, record.slot, &probe.first_nan);
  SetKept(*model.store, record.slot, &probe.first_inf);
  return probe;
}

}  // namespace cgdebug::serve
