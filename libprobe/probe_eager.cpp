// The table's slots of eager calls, and where a probe is called.
#include <algorithm>
#include <utility>

#include "libprobe/capture/cuda_lane.h"
#include "libprobe/probe_table.h"
#include "libprobe/registration.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

constexpr std::size_t kMaxEagerSlots = 64;  // per probe: one per shape and stream

class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

// Buffers that go back unless a slot takes them.
struct SpareBuffers {
  ~SpareBuffers() { capture::FreeBuffers(buffers); }
  capture::Buffers buffers;
};

}  // namespace

std::string ProbeTable::CallSite(ProbeState& probe, std::unique_lock<std::mutex>& lock) {
  const SiteProvider provider = site_provider_.load();
  if (provider == nullptr) return {};
  std::string site;
  {
    const Unlocked unlocked(lock);
    site = provider();
  }
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
  const bool on_gpu = tensor.device_type == DeviceType::kCuda;
  ProbeSlot* found = FindEagerSlot(probe, tensor, stream);
  std::string site;
  SpareBuffers spare;
  if (found == nullptr) {
    site = CallSite(probe, lock);
    if (on_gpu) {
      const std::uint64_t bytes = CheckTensor(probe.name, tensor);
      // The device may have to get idle for it, and other threads must not wait for that.
      const Unlocked unlocked(lock);
      spare.buffers =
          capture::AllocateBuffers(bytes, tensor.device_index, capture::Buffers::Kind::kEager);
    }
    AdoptInThisProcess(probe);
    if (probe.closed) return nullptr;
    found = FindEagerSlot(probe, tensor, stream);
  }
  if (found != nullptr) {
    found->last_used = ++eager_uses_;
    return found;
  }
  EvictOldEager(probe);
  std::unique_ptr<ProbeSlot> slot;
  if (!on_gpu) slot = TakePrepared(probe, tensor);
  if (slot == nullptr) {
    slot = MakeSlot(probe, tensor, on_gpu ? layout::Lane::kCallback : layout::Lane::kHost,
                    on_gpu ? layout::LaneReason::kEager : layout::LaneReason::kNone);
  }
  slot->eager_stream = stream;
  slot->last_used = ++eager_uses_;
  slot->buffers = std::exchange(spare.buffers, {});
  try {
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
