#include "libprobe/slots/store/all_slots.h"

#include <algorithm>

#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/slots/slot_queries.h"

namespace cgdebug {

using capture::ProbeSlot;

void AddGaps(const ProbeSlot& slot, ReadState* gaps) {
  gaps->lost += slot.reader->credit().lost;
  gaps->left_out += slot.reader->head().suppressed;
  if (!layout::MakesStatisticsOfEach(slot.registration) && slot.reader->head().accepted > 0) {
    ++gaps->unseen;
  }
  if ((slot.registration.actions & layout::kActionCompare) == 0) return;
  const layout::Verdict verdict = StatusOf(slot).verdict;
  const bool is_whole = verdict.lost == 0 && (verdict.state == layout::VerdictState::kPass ||
                                              verdict.state == layout::VerdictState::kNone);
  if (!is_whole) ++gaps->not_compared;
}

bool AllDrained(const SlotList& slots, const ProbeState* probe) {
  for (const auto& slot : slots) {
    if (!slot->reader || !NeedsDaemon(*slot)) continue;
    if (probe != nullptr && slot->probe_id != probe->id) continue;
    if (Unread(*slot) != 0) return false;
  }
  return true;
}

bool AllRead(const SlotList& slots) {
  return std::none_of(slots.begin(), slots.end(), [](const auto& slot) {
    return slot->reader.has_value() && Unread(*slot) != 0;
  });
}

const ProbeSlot* FindState(const SlotList& slots, const capture::DirectState* state) {
  if (state == nullptr) return nullptr;
  for (const auto& slot : slots) {
    if (slot->buffers.state == state) return slot.get();
  }
  return nullptr;
}

std::vector<ProbeSlot*> OnDevice(const SlotList& slots) {
  std::vector<ProbeSlot*> found;
  for (const auto& slot : slots) {
    const bool has_values = slot->reader && slot->buffers.staging != nullptr;
    if (has_values && capture::IsOnDevice(*slot)) found.push_back(slot.get());
  }
  return found;
}

}  // namespace cgdebug
