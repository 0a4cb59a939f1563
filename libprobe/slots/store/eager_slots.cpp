#include "libprobe/slots/store/eager_slots.h"

#include <algorithm>
#include <chrono>

#include "libprobe/capture/graph/counted_graph.h"
#include "libprobe/ring/shared_copy.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

constexpr std::size_t kMaxEagerSlots = 64;  // per probe: one per shape and stream
// A shape that came again is expected to come again, for so many uses of its probe.
constexpr std::uint64_t kExpectedFor = 8 * kMaxEagerSlots;
// The newest shape of a probe gives way to other eager calls if it was not called for so long.
constexpr std::chrono::seconds kIdle{10};

// Takes the pin of eager calls away when the GPU has finished them.
void SettleEagerCalls(ProbeSlot& slot) {
  if (!slot.launches_pin) return;
  if (ring::LoadAcquire(*slot.buffers.runs) != slot.launches) {
    slot.all_ran_since.reset();
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!slot.all_ran_since) slot.all_ran_since = now;
  // The stores of a leaf that has counted its run have arrived by then.
  if (now - *slot.all_ran_since < CountedGraph::kStoresArrive) return;
  slot.launches_pin = false;
  slot.all_ran_since.reset();
  slot.life.Unpin();
}

}  // namespace

void EagerSlots::Use(ProbeSlot& slot) {
  if (slot.in_use_order) {
    order_.splice(order_.end(), order_, slot.use);
    return;
  }
  slot.use = order_.insert(order_.end(), &slot);
  slot.in_use_order = true;
  bytes_ += slot.block.bytes;
}

void EagerSlots::Remove(ProbeSlot& slot) {
  order_.erase(slot.use);
  bytes_ -= slot.block.bytes;
  slot.in_use_order = false;
}

std::vector<std::pair<std::shared_ptr<ProbeState>, ProbeSlot*>> EagerSlots::GivingWay(
    std::uint64_t bytes, Give which, const ProbeRegistry& probes) const {
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::pair<std::shared_ptr<ProbeState>, ProbeSlot*>> given;
  std::uint64_t given_bytes = 0;
  for (auto it = order_.begin(); it != order_.end() && given_bytes < bytes; ++it) {
    ProbeSlot& slot = **it;
    SettleEagerCalls(slot);
    if (slot.life.pinned() || !slot.reader) continue;
    auto probe = probes.Find(slot.probe_id);
    if (probe == nullptr) continue;
    const bool is_unused = which == Give::kUnused && now - slot.last_used >= kIdle;
    if (probe->newest_eager == &slot && which != Give::kAny && !is_unused) continue;
    given_bytes += slot.block.bytes;
    given.emplace_back(std::move(probe), &slot);
  }
  return given;
}

std::vector<ProbeSlot*> SurplusEagerSlots(const ProbeState& probe) {
  std::size_t count = 0;
  std::vector<ProbeSlot*> idle;
  for (ProbeSlot* slot : probe.slots) {
    if (slot->life.held_by_graph()) continue;
    ++count;
    SettleEagerCalls(*slot);
    if (!slot->life.pinned()) idle.push_back(slot);
  }
  if (count < kMaxEagerSlots) return {};
  // First what nobody expects, or each shape that comes once would cost one that comes in turn,
  // and that the next one.
  std::ranges::sort(idle, {}, [&](const ProbeSlot* slot) {
    const bool is_expected =
        slot->was_used_again && probe.eager_uses - slot->used_at < kExpectedFor;
    return std::pair(is_expected, slot->used_at);
  });
  idle.resize(std::min(idle.size(), count - kMaxEagerSlots + 1));
  return idle;
}

}  // namespace cgdebug
