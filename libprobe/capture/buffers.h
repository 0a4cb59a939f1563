// buffers.h: the memory outside of the ring that one slot has.
#pragma once

#include <cstdint>

namespace cgdebug::capture {

struct DirectState;

// Memory that CUDA copies through. All null for CPU tensors.
struct Buffers {
  enum class Kind : std::uint8_t { kNone, kEager, kEagerStats, kCallback, kDirect };
  Kind kind = Kind::kNone;
  // Device memory: the tensor as it was when the compute path passed the probe, or parts of its
  // statistics. kCallback, kDirect.
  void* staging = nullptr;
  void* pinned = nullptr;        // host memory: target of the copy; kEager, kCallback
  DirectState* state = nullptr;  // device memory; kEagerStats, kDirect
  // Host memory: how many times the leaf has run; kEagerStats, kDirect.
  std::uint64_t* runs = nullptr;
  std::uint64_t bytes = 0;
  int device = 0;
  bool from_fallback = false;  // staging came from the DeviceAllocator
  std::uint32_t slab = 0;      // in which pinned lies; kEager
  std::uint64_t slab_offset = 0;
};

}  // namespace cgdebug::capture
