// payload_pool.h: memory of payloads that is used again.
//
// A daemon that reads at full rate allocates and frees gigabytes a second, on several threads. The
// allocator spreads that over its heaps and keeps more of it the longer it lasts.
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
  // Keeps up to `max_bytes` of what nobody uses any more.
  explicit PayloadPool(std::size_t max_bytes);

  // Of `bytes` bytes of any content, or empty where none is kept.
  std::vector<std::byte> Take(std::uint64_t bytes);
  // Its memory comes back when its last owner is gone.
  PayloadPtr Share(std::vector<std::byte> payload);

 private:
  class Spares;
  std::shared_ptr<Spares> spares_;
};

}  // namespace cgdebug::pipeline
