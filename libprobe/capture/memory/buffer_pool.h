// buffer_pool.h: staging and pinned memory, reused from slot to slot.
//
// Why a pool: cudaFree and cudaFreeHost synchronize with the device, so a probe whose graph was
// deleted must not call them while the job runs. And a job that captures again wants the same
// sizes.
//
// Why slabs for eager calls: cudaHostAlloc may wait for the device as well. If a stream waits for
// something that the calling thread does only later, an eager call that waits hangs for ever. So
// their pinned memory is cut from large allocations, and most calls with a new shape need none.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/ring/segment/free_ranges.h"

namespace cgdebug::capture {

// Thread:   any.
// Lifetime: one per process, never destroyed: driver threads may outlive static objects.
class BufferPool {
 public:
  static BufferPool& Instance();

  // The contents are undefined, the direct lane's state included.
  // Requires: relaxed capture mode if a capture is under way; `device` is current.
  // Fails: throws ProbeError.
  Buffers Take(std::uint64_t bytes, int device, Buffers::Kind kind);
  // Makes no call to CUDA.
  void Give(const Buffers& buffers) noexcept;
  // Frees unused memory if there is much of it, and then waits for the device.
  void Trim() noexcept;
  void SetFallback(const DeviceAllocator& allocator);
  // What is allocated on all devices, unused memory included.
  std::uint64_t device_bytes() const { return device_bytes_.load(std::memory_order_relaxed); }
  // Memory that somebody else allocated for probes, and never frees.
  void CountForEver(std::uint64_t bytes) { device_bytes_.fetch_add(bytes); }

 private:
  struct Key {
    std::uint64_t bytes;
    int device;
    Buffers::Kind kind;
    auto operator<=>(const Key&) const = default;
  };
  // One allocation of pinned memory, shared by slots.
  struct Slab {
    std::byte* data;
    std::uint64_t bytes;
    std::uint64_t used_bytes;
  };
  using Idle = std::map<Key, std::vector<Buffers>>;
  using Slabs = std::map<std::uint32_t, Slab>;
  DeviceAllocator Fallback();
  void AllocateStaging(Buffers* buffers);
  void AllocateUncounted(std::uint64_t bytes, Buffers* buffers);
  void FreeNow(const Buffers& buffers, const DeviceAllocator& fallback) noexcept;
  Buffers TakeEager(std::uint64_t bytes, int device);
  Buffers TakeState(int device);
  std::uint64_t* TakeRuns();
  bool TakeFromSlabs(Buffers* buffers);
  void GiveToSlab(const Buffers& buffers);
  void FreeIdle(std::uint64_t allowed_bytes) noexcept;
  std::pair<Idle, Slabs> TakeIdle(std::uint64_t allowed_bytes) noexcept;

  std::mutex mutex_;  // never held over a call to CUDA
  Idle idle_;
  std::uint64_t idle_bytes_ = 0;  // held and unused, without slabs
  Slabs slabs_;                   // by number
  std::uint32_t last_slab_ = 0;
  std::uint64_t slab_bytes_ = 0;  // of all of them
  ring::FreeRanges free_;         // by slab
  DeviceAllocator fallback_ = {};
  std::vector<std::uint64_t*> runs_;  // unused ones
  // States of eager calls that are unused, by device. They are cut from large allocations, which
  // are never freed: some 200 KiB for each 256 shapes.
  std::map<int, std::vector<Buffers>> states_;
  std::size_t runs_made_ = 0;
  std::atomic<std::uint64_t> device_bytes_{0};
};

// Device memory that the kernels of eager calls on a stream share, one after another. Never freed:
// a GPU may still write there. Thread: one at a time.
class StreamMemory {
 public:
  // `what`: how the refusal begins, "op logs see eager ops".
  explicit StreamMemory(const char* what) : what_(what) {}
  // Zero when the stream first asks for it; then always the same.
  // Requires: as BufferPool::Take(). Fails: throws ProbeError; kNoSpace if too many streams have
  // some.
  void* Of(int device, void* stream, std::uint64_t bytes);

 private:
  const char* const what_;
  std::map<std::pair<int, void*>, void*> known_ = {};
};

}  // namespace cgdebug::capture
