// The table's slots of eager calls, and where a probe is called.
#include <algorithm>

#include "libprobe/capture/cuda_lane.h"
#include "libprobe/probe_table.h"
#include "libprobe/registration.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

constexpr std::size_t kMaxEagerSlots = 64;  // per probe: one per shape and stream

}  // namespace

std::string ProbeTable::CallSite(ProbeState& probe, std::unique_lock<std::mutex>& lock) {
  const SiteProvider provider = site_provider_.load();
  if (provider == nullptr) return {};
  lock.unlock();
  std::string site = provider();
  lock.lock();
  AdoptInThisProcess(probe);
  return site;
}

ProbeSlot* ProbeTable::FindEagerSlot(ProbeState& probe, const TensorRef& tensor, void* stream) {
  for (ProbeSlot* slot : probe.slots) {
    if (slot->in_graph || slot->eager_stream != stream) continue;
    if (SameTensor(slot->registration, tensor)) return slot;
  }
  return nullptr;
}

ProbeSlot* ProbeTable::EagerSlot(ProbeState& probe, const TensorRef& tensor, void* stream,
                                 std::unique_lock<std::mutex>& lock) {
  ProbeSlot* found = FindEagerSlot(probe, tensor, stream);
  std::string site;
  if (found == nullptr) {
    site = CallSite(probe, lock);
    if (probe.closed) return nullptr;
    found = FindEagerSlot(probe, tensor, stream);
  }
  if (found != nullptr) {
    found->last_used = ++eager_uses_;
    return found;
  }
  EvictOldEager(probe);
  const bool on_gpu = tensor.device_type == DeviceType::kCuda;
  std::unique_ptr<ProbeSlot> slot;
  if (!on_gpu) slot = TakePrepared(probe, tensor);
  if (slot == nullptr) {
    slot = MakeSlot(probe, tensor, on_gpu ? layout::Lane::kCallback : layout::Lane::kHost,
                    on_gpu ? layout::LaneReason::kEager : layout::LaneReason::kNone);
  }
  slot->eager_stream = stream;
  slot->last_used = ++eager_uses_;
  try {
    if (on_gpu) {
      slot->buffers = capture::AllocateBuffers(slot->registration.payload_bytes,
                                               tensor.device_index, capture::Buffers::Kind::kEager);
    }
    Complete(probe, *slot, tensor, 0, 0, site);
    return Publish(probe, slot);
  } catch (...) {
    FreeSlot(*slot);
    throw;
  }
}

// Makes room for one more by giving up the slots that were unused for the longest time. A slot with
// calls still on their way to the GPU stays, so there may be more of them for a while.
void ProbeTable::EvictOldEager(ProbeState& probe) {
  std::size_t count = 0;
  std::vector<ProbeSlot*> idle;
  for (ProbeSlot* slot : probe.slots) {
    if (slot->in_graph) continue;
    ++count;
    if (!slot->in_use()) idle.push_back(slot);
  }
  if (count < kMaxEagerSlots) return;
  std::sort(idle.begin(), idle.end(),
            [](const ProbeSlot* a, const ProbeSlot* b) { return a->last_used < b->last_used; });
  idle.resize(std::min(idle.size(), count - kMaxEagerSlots + 1));
  for (ProbeSlot* slot : idle) Evict(probe, *slot);
}

}  // namespace cgdebug
