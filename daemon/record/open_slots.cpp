#include "daemon/record/open_slots.h"

#include <algorithm>

namespace cgdebug::pipeline {

void OpenSlots::Open(const SlotPtr& slot, std::uint64_t seen, const Recordings& active) {
  State& state = slots_[slot];
  state.seen = seen;
  Tell(slot, active, &state);
}

void OpenSlots::See(const SlotPtr& slot, std::uint64_t ordinal) {
  const auto open = slots_.find(slot);
  if (open != slots_.end()) open->second.seen = std::max(open->second.seen, ordinal);
}

void OpenSlots::End(const SessionPtr& session) {
  std::erase_if(slots_, [&](const auto& open) { return open.first->session == session; });
}

void OpenSlots::Tell(const Recordings& active) {
  for (auto& [slot, state] : slots_) Tell(slot, active, &state);
}

void OpenSlots::Tell(const SlotPtr& slot, const Recordings& active, State* state) const {
  const bool needed = std::ranges::any_of(
      active, [&](const auto& recording) { return recording->selection().NeedsAll(*slot); });
  const bool registered = (slot->registration.flags & layout::kSlotLossless) != 0;
  const layout::Lossless wanted = needed == registered ? layout::Lossless::kAsRegistered
                                  : needed             ? layout::Lossless::kOn
                                                       : layout::Lossless::kOff;
  const bool wants_values =
      slot->IsOnDevice() && std::ranges::any_of(active, [&](const auto& recording) {
        return recording->selection().Wants(*slot);
      });
  const bool is_same = wanted == state->lossless && wants_values == state->wants_values;
  state->lossless = wanted;
  state->wants_values = wants_values;
  if (!is_same && set_lossless_) set_lossless_(slot, wanted, wants_values);
}

void OpenSlots::Begin(const RingHeads& heads, ActiveRecording* recording) const {
  std::map<SlotPtr, RingHead> head_of;
  for (const RingHead& head : heads) head_of.emplace(head.slot, head);
  for (const auto& [slot, state] : slots_) {
    if (!recording->selection().Wants(*slot)) continue;
    const auto head = head_of.find(slot);
    const bool is_known = head != head_of.end() && head->second.ordinal >= state.seen;
    recording->Open(slot, is_known ? head->second.ordinal : state.seen,
                    is_known ? head->second.replay : 0,
                    head != head_of.end() ? head->second.suppressed : 0);
  }
}

}  // namespace cgdebug::pipeline
