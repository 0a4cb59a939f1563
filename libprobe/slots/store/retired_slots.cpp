#include "libprobe/slots/store/retired_slots.h"

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace cgdebug {
namespace {

using capture::ProbeSlot;
using capture::SlotPhase;

constexpr std::size_t kMaxRetiredSlots = 64;  // per probe
constexpr std::uint64_t kMaxRetiredBytes = 256ull << 20;

}  // namespace

std::vector<std::pair<std::shared_ptr<ProbeState>, ProbeSlot*>> RetiredBeyondLimits(
    const SlotList& slots, const ProbeRegistry& probes, bool all, const ProbeState* only) {
  struct Kept {
    std::shared_ptr<ProbeState> probe;
    std::uint64_t newest_capture = 0;
    std::size_t slots = 0;
  };
  std::vector<std::pair<std::shared_ptr<ProbeState>, ProbeSlot*>> gone;
  std::unordered_map<std::uint64_t, Kept> by_probe;
  std::uint64_t bytes = 0;
  for (auto it = slots.rbegin(); it != slots.rend(); ++it) {  // newest first
    ProbeSlot& slot = **it;
    if (!slot.retired || slot.life.phase() != SlotPhase::kGraphGone) continue;
    if (only != nullptr && slot.probe_id != only->id) continue;
    const auto [found, is_newest] = by_probe.try_emplace(slot.probe_id);
    Kept& kept = found->second;
    if (is_newest) {
      kept.probe = probes.Find(slot.probe_id);
      kept.newest_capture = slot.registration.graph_id;
    }
    if (kept.probe == nullptr) continue;  // it is being closed
    const bool fits = slot.registration.graph_id == kept.newest_capture ||
                      (kept.slots < kMaxRetiredSlots && bytes < kMaxRetiredBytes);
    if (all || !fits) {
      gone.emplace_back(kept.probe, &slot);
    } else {
      ++kept.slots;
      bytes += slot.block.bytes + slot.registration.device_bytes;
    }
  }
  return gone;
}

}  // namespace cgdebug
