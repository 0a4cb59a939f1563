#include "daemon/ingest/slot/slot_controls.h"

#include <algorithm>
#include <utility>

#include "daemon/core/base/realtime.h"

namespace cgdebug::ingest {
namespace {

// The newest replay of the graph; a conditional body need not have run in it.
std::uint64_t NewestReplay(const layout::SlotHead& head) {
  return std::max(head.replay, head.graph_replays);
}

}  // namespace

void SlotControls::Start(std::vector<pipeline::SlotPtr> rows) {
  rows_ = std::move(rows);
  lossless_.assign(rows_.size(), layout::Lossless::kAsRegistered);
  control_ = ring_->control();
  if (control_.lossless != layout::Lossless::kAsRegistered) {
    control_.lossless = layout::Lossless::kAsRegistered;
    ring_->SetControl(control_);
  }
}

void SlotControls::Show() const {
  for (const pipeline::SlotPtr& row : rows_) registry_->SetControl(row, control_);
}

layout::Lossless SlotControls::LosslessWanted() const {
  using layout::Lossless;
  const auto is = [](Lossless wanted) {
    return [wanted](Lossless lossless) { return lossless == wanted; };
  };
  return std::ranges::any_of(lossless_, is(Lossless::kOn))    ? Lossless::kOn
         : std::ranges::all_of(lossless_, is(Lossless::kOff)) ? Lossless::kOff
                                                              : Lossless::kAsRegistered;
}

void SlotControls::Set(const pipeline::ControlChange& change, std::size_t row) {
  layout::SlotControl control = change.control;
  control.lossless = control_.lossless;
  if (change.lossless) {
    lossless_[row] = *change.lossless;
    device_->SetEvery(change.wants_values);
    control = control_;
    control.lossless = LosslessWanted();
    if (control.lossless == control_.lossless) return;
  } else if (change.from_next) {
    // A kernel has decided about the next replay already, when the last one ended. In a body it has
    // not, but a replay may be under way.
    const bool decided =
        slot_->registration.lane == static_cast<std::uint8_t>(layout::Lane::kDirect) &&
        !slot_->IsInBody();
    control.from = NewestReplay(ring_->head()) + (decided ? 2 : 1);
    control.until += control.from - 1;
  }
  Apply(control);
}

void SlotControls::Apply(const layout::SlotControl& control) {
  control_ = control;
  ring_->SetControl(control);
  Show();
}

// The producer notices the end by itself; this is for clients that ask what is set. Entries that
// were written under the trigger are read first.
bool SlotControls::IsOver(const layout::SlotHead& head, std::uint64_t consumed) const {
  if (control_.mode == layout::ControlMode::kAsRegistered || head.accepted > consumed) return false;
  // In a body more iterations of that replay may come.
  const std::uint64_t last = control_.until + (slot_->IsInBody() ? 1 : 0);
  if (control_.until != 0 && NewestReplay(head) >= last) return true;
  return control_.expires_ns != 0 && RealtimeNs() > control_.expires_ns;
}

void SlotControls::EndIfOver(const layout::SlotHead& head, std::uint64_t consumed) {
  if (IsOver(head, consumed)) Apply(layout::Ended(control_));
}

}  // namespace cgdebug::ingest
