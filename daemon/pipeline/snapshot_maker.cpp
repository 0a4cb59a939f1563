#include "daemon/pipeline/snapshot_maker.h"

#include <cstring>
#include <utility>

#include "daemon/numerics/device_stats.h"
#include "daemon/numerics/stats.h"

namespace cgdebug::pipeline {
namespace {

bool TriggerHolds(const layout::SlotControl& control, const numerics::Stats& stats) {
  switch (control.trigger) {
    case layout::ControlTrigger::kNonfinite:
      return stats.nonfinite() != 0;
    case layout::ControlTrigger::kInf:
      return stats.pos_inf + stats.neg_inf != 0;
    case layout::ControlTrigger::kAbsMax:
      return stats.nonfinite() != 0 || stats.abs_max > control.threshold;
    case layout::ControlTrigger::kNone:
      return true;
  }
  return true;
}

}  // namespace

StoredSnapshot SnapshotMaker::Make(const SlotPtr& slot, ring::Entry* entry,
                                   const layout::SlotControl& control) {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->slot = slot;
  snapshot->ordinal = entry->ordinal;
  snapshot->sequence = entry->sequence;
  snapshot->serial = entry->serial;
  snapshot->timestamp_ns = entry->timestamp_ns;
  snapshot->step = entry->step;
  snapshot->forced = (entry->flags & layout::kEntryForced) != 0;
  PayloadPtr payload = TakeValues(entry, control, snapshot.get());
  return {std::move(snapshot), std::move(payload)};
}

void SnapshotMaker::Follow(const StoredSnapshot& stored) {
  previous_hash_ = stored.snapshot->stats.hash;
  previous_payload_ = stored.payload;
}

PayloadPtr SnapshotMaker::TakeValues(ring::Entry* entry, const layout::SlotControl& control,
                                     Snapshot* snapshot) {
  if ((entry->flags & layout::kEntryIsStats) != 0) {
    snapshot->stats = numerics::FromDevice(entry->stats);
    snapshot->has_values = false;
    snapshot->changed =
        (entry->stats.flags & layout::kStatsHasHash) == 0 || snapshot->stats.hash != previous_hash_;
    previous_hash_ = snapshot->stats.hash;
    return nullptr;
  }
  PayloadPtr payload = pool_->Share(std::move(entry->payload));
  const auto view =
      numerics::MakeTensorView(snapshot->slot->dtype, snapshot->slot->shape, *payload);
  if (view.ok()) snapshot->stats = numerics::ComputeStats(*view);
  if (const auto previous = previous_payload_.lock()) {  // bytes only where the hash cannot tell
    snapshot->changed = snapshot->stats.hash != previous_hash_ ||
                        std::memcmp(previous->data(), payload->data(), payload->size()) != 0;
  }
  snapshot->has_values =
      (entry->flags & layout::kEntryDropValues) == 0 &&
      ((entry->flags & layout::kEntryTriggered) == 0 || TriggerHolds(control, snapshot->stats));
  previous_hash_ = snapshot->stats.hash;
  if (snapshot->has_values) {
    previous_payload_ = payload;
    return payload;
  }
  if (snapshot->changed) previous_payload_.reset();
  return nullptr;
}

}  // namespace cgdebug::pipeline
