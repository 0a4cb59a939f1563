#include "libprobe/capture/memory/device_ring.h"

#include <cuda_runtime_api.h>

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/ring/payload_checksum.h"
#include "libprobe/ring/shared_copy.h"

namespace cgdebug::capture {
namespace {

using layout::EntryState;
using layout::EntryWord;

constexpr std::chrono::milliseconds kMemoryKnownFor{50};

// A stream of our own for copies, one per device. Never destroyed: threads may copy until the end.
// Requires: `device` is current.
cudaStream_t CopyStream(int device) {
  static auto* mutex = new std::mutex;
  static auto* streams = new std::map<int, cudaStream_t>;
  const std::lock_guard lock(*mutex);
  cudaStream_t& stream = (*streams)[device];
  if (stream == nullptr) CGD_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// Copies the values of `ordinal` to `to`. False: the ring has them no longer, and `to` holds
// anything.
bool CopyValues(const ProbeSlot& slot, cudaStream_t stream, std::uint64_t ordinal, void* to) {
  const layout::SlotRegistration& r = slot.registration;
  const DeviceRing ring = RingOf(r, slot.buffers.staging);
  const std::uint64_t index = (ordinal - 1) % (std::uint64_t{ring.capacity} + 1);
  CGD_CUDA(cudaMemcpyAsync(to, ring.entries + index * ring.stride_bytes, r.payload_bytes,
                           cudaMemcpyDefault, stream));
  // Read after the values, in stream order. The replay that writes over them begins only after the
  // leaf of `ordinal` + capacity has stored its count.
  std::uint64_t accepted = 0;
  CGD_CUDA(cudaMemcpyAsync(&accepted, &slot.buffers.state->accepted, sizeof(accepted),
                           cudaMemcpyDefault, stream));
  CGD_CUDA(cudaStreamSynchronize(stream));
  return accepted >= ordinal && accepted - ordinal < ring.capacity;
}

template <typename T>
T* At(const ProbeSlot& slot, std::uint64_t offset) {
  return reinterpret_cast<T*>(slot.block.data + offset);
}

}  // namespace

DeviceRing RingOf(const layout::SlotRegistration& registration, void* memory) {
  return {static_cast<std::byte*>(memory),
          registration.device_bytes / (std::uint64_t{registration.device_capacity} + 1),
          registration.device_capacity};
}

std::vector<std::vector<std::byte>> ReadDeviceRing(const ProbeSlot& slot,
                                                   const std::vector<std::uint64_t>& ordinals) {
  std::vector<std::vector<std::byte>> values(ordinals.size());
  if (ordinals.empty() || slot.buffers.staging == nullptr) return values;
  const DeviceGuard guard(slot.buffers.device);
  const RelaxedCapture relaxed;
  const cudaStream_t stream = CopyStream(slot.buffers.device);
  for (std::size_t i = 0; i < ordinals.size(); ++i) {
    values[i].resize(slot.registration.payload_bytes);
    if (!CopyValues(slot, stream, ordinals[i], values[i].data())) values[i].clear();
  }
  return values;
}

DeviceMemory MemoryOf(int device) {
  struct Known {
    DeviceMemory memory;
    std::chrono::steady_clock::time_point at;
  };
  static auto* known = new std::map<int, Known>;
  const auto now = std::chrono::steady_clock::now();
  const auto found = known->find(device);
  if (found != known->end() && now - found->second.at < kMemoryKnownFor) {
    return found->second.memory;
  }
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  CGD_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
  const DeviceMemory memory = {free_bytes, all_bytes};
  known->insert_or_assign(device, Known{memory, now});
  return memory;
}

// CUDA has no such wait with an end, so another thread waits.
bool AwaitIdle(int device, std::chrono::nanoseconds patience) noexcept {
  try {
    auto idle = std::make_shared<std::promise<bool>>();
    std::future<bool> result = idle->get_future();
    std::thread([device, idle] {
      bool ended = false;
      try {
        const DeviceGuard guard(device);
        ended = cudaDeviceSynchronize() == cudaSuccess;
      } catch (const ProbeError&) {
      }
      idle->set_value(ended);
    }).detach();
    return result.wait_for(patience) == std::future_status::ready && result.get();
  } catch (const std::exception&) {
    return false;
  }
}

bool ServeWindow(ProbeSlot* slot) {
  const layout::SlotRegistration& r = slot->registration;
  if (slot->buffers.staging == nullptr || !slot->reader) return false;
  const std::uint64_t offset = layout::GeometryOf(r).window_offset;
  auto& window = *At<layout::DeviceWindow>(*slot, offset);
  const auto& request = *At<layout::WindowRequest>(*slot, offset + sizeof(layout::DeviceWindow));
  const std::uint64_t wanted = ring::LoadAcquire(request.ordinal);  // V4
  const std::uint64_t accepted = slot->reader->accepted();
  const std::uint64_t ordinal = (wanted & layout::kWantsNewest) != 0 ? accepted : wanted;
  if (ordinal == 0 || ring::LoadRelaxed(request.order) != r.order) return false;
  if (ring::LoadRelaxed(window.word) == EntryWord(ordinal, EntryState::kReady)) return false;
  if (ring::LoadRelaxed(window.refused) == ordinal) return false;
  if (ordinal > accepted) return false;
  auto* to = At<std::byte>(*slot, offset + layout::kWindowPayloadOffset);
  bool whole = accepted - ordinal < r.device_capacity;
  if (whole) {
    const DeviceGuard guard(slot->buffers.device);
    const RelaxedCapture relaxed;
    ring::StoreRelaxed(window.word, EntryWord(ordinal, EntryState::kFilling));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    whole = CopyValues(*slot, CopyStream(slot->buffers.device), ordinal, to);
  }
  if (!whole) {
    ring::StoreRelease(window.refused, ordinal);
    return true;
  }
  ring::StoreRelaxed(window.checksum, ring::PayloadChecksum(to, r.payload_bytes) +
                                          layout::WindowSum(ordinal, r.order));
  ring::StoreRelease(window.word, EntryWord(ordinal, EntryState::kReady));  // V1, pairs with V2
  return true;
}

}  // namespace cgdebug::capture
