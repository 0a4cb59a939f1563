#include "daemon/pipeline/snapshot_maker.h"

#include <cstring>
#include <utility>

#include "daemon/core/numerics/device_stats.h"
#include "daemon/core/numerics/stats.h"
#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::pipeline {
namespace {

bool TriggerHolds(const layout::SlotControl& control, const numerics::Stats& stats, bool changed) {
  switch (control.trigger) {
    case layout::ControlTrigger::kNonfinite:
      return stats.nonfinite() != 0;
    case layout::ControlTrigger::kInf:
      return stats.pos_inf + stats.neg_inf != 0;
    case layout::ControlTrigger::kAbsMax:
      return stats.nonfinite() != 0 || stats.abs_max > control.threshold;
    case layout::ControlTrigger::kChanged:
      return changed;
    case layout::ControlTrigger::kMismatch:
      return false;
    case layout::ControlTrigger::kNone:
      return true;
  }
  return true;
}

// Whether the values are equal, as far as statistics can tell. The hash comes first, because it
// nearly always differs.
bool AreOfEqualValues(const numerics::Stats& a, const numerics::Stats& b) {
  return a.has_hash && b.has_hash && a.hash == b.hash && numerics::DifferencesOf(a, b).empty();
}

}  // namespace

StoredSnapshot SnapshotMaker::Make(const SlotPtr& slot, ring::Entry* entry,
                                   const layout::SlotControl& control) {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->slot = slot;
  snapshot->ordinal = entry->ordinal;
  snapshot->replay = entry->replay;
  snapshot->iteration = entry->iteration;
  snapshot->serial = entry->serial;
  snapshot->timestamp_ns = entry->timestamp_ns;
  snapshot->step = entry->step;
  snapshot->forced = (entry->flags & layout::kEntryForced) != 0;
  PayloadPtr payload = TakeValues(entry, control, snapshot.get());
  return {std::move(snapshot), std::move(payload)};
}

void SnapshotMaker::Follow(const StoredSnapshot& stored) {
  previous_stats_ = stored.snapshot->stats;
  previous_payload_ = stored.payload;
}

PayloadPtr SnapshotMaker::TakeValues(ring::Entry* entry, const layout::SlotControl& control,
                                     Snapshot* snapshot) {
  if ((entry->flags & layout::kEntryIsStats) != 0) {
    snapshot->stats = numerics::FromDevice(entry->stats);
    snapshot->on_device = (entry->flags & layout::kEntryOnDevice) != 0;
    snapshot->has_values = snapshot->on_device;
    snapshot->changed = !previous_stats_ || !AreOfEqualValues(*previous_stats_, snapshot->stats);
    if (snapshot->changed) previous_payload_.reset();  // it is not of the snapshot before the next
    previous_stats_ = snapshot->stats;
    return nullptr;
  }
  if (entry->is_held) {
    snapshot->stats = *previous_stats_;
    snapshot->changed = false;
    snapshot->has_values = true;
    return previous_payload_.lock();
  }
  PayloadPtr payload = pool_->Share(std::move(entry->payload));
  const auto view =
      numerics::MakeTensorView(snapshot->slot->dtype, snapshot->slot->shape, *payload);
  if (view.ok()) snapshot->stats = numerics::ComputeStats(*view);
  if (const auto previous = previous_payload_.lock()) {  // bytes only if hashes are equal
    snapshot->changed = snapshot->stats.hash != previous_stats_->hash ||
                        std::memcmp(previous->data(), payload->data(), payload->size()) != 0;
  }
  snapshot->has_values = (entry->flags & layout::kEntryDropValues) == 0 &&
                         ((entry->flags & layout::kEntryTriggered) == 0 ||
                          TriggerHolds(control, snapshot->stats, snapshot->changed));
  previous_stats_ = snapshot->stats;
  if (snapshot->has_values) {
    previous_payload_ = payload;
    return payload;
  }
  if (snapshot->changed) previous_payload_.reset();
  return nullptr;
}

}  // namespace cgdebug::pipeline
