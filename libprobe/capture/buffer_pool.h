// buffer_pool.h: staging and pinned memory, reused from slot to slot.
//
// Why a pool: cudaFree and cudaFreeHost synchronize with the device, so a probe whose graph was
// deleted must not call them while the job runs. And a job that captures again wants the same
// sizes.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/probe_slot.h"

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
  void Give(const Buffers& buffers) noexcept;
  void SetFallback(const DeviceAllocator& allocator);

 private:
  struct Key {
    std::uint64_t bytes;
    int device;
    Buffers::Kind kind;
    auto operator<=>(const Key&) const = default;
  };
  void AllocateStaging(std::uint64_t bytes, Buffers* buffers);
  void FreeNow(const Buffers& buffers) const noexcept;
  void Trim() noexcept;

  std::mutex mutex_;
  std::map<Key, std::vector<Buffers>> idle_;
  std::uint64_t idle_bytes_ = 0;  // held and unused
  DeviceAllocator fallback_ = {};
};

}  // namespace cgdebug::capture
