// payload_pool.h: reuses the memory of payloads.
//
// A daemon that reads at full rate allocates and frees gigabytes per second, on several threads.
// The allocator would spread that over its heaps and keep more and more of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/model/snapshot.h"

namespace cgdebug::pipeline {

// Thread: any. Payloads may outlive the pool.
class PayloadPool {
 public:
  // Keeps up to `max_bytes` of unused memory.
  explicit PayloadPool(std::size_t max_bytes);

  // Memory of `bytes` bytes with any content, or empty if none is kept.
  std::vector<std::byte> Take(std::uint64_t bytes);
  // The memory comes back when its last owner is gone.
  PayloadPtr Share(std::vector<std::byte> payload);

 private:
  class Spares;
  std::shared_ptr<Spares> spares_;
};

}  // namespace cgdebug::pipeline
