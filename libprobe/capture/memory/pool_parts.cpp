#include "libprobe/capture/pool_parts.h"

#include <algorithm>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/memory/buffer_pool.h"

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kLeastBlockBytes = 32ull << 10;
constexpr std::uint64_t kMostBlockBytes = 8ull << 20;  // unless one slot needs more

}  // namespace

PoolParts::~PoolParts() {
  for (const auto& [device, blocks] : blocks_) {
    for (const Buffers& block : blocks) BufferPool::Instance().Give(block);
  }
}

layout::DeviceStats* PoolParts::Take(std::uint64_t count, int device, Place* place) {
  const std::uint64_t bytes = count * sizeof(layout::DeviceStats);
  std::vector<Buffers>& blocks = blocks_[device];
  while (place->block < blocks.size() && blocks[place->block].bytes - place->offset < bytes) {
    *place = {place->block + 1, 0};
  }
  if (place->block == blocks.size()) {
    std::uint64_t all = kLeastBlockBytes;  // as much as there is: few blocks, however many parts
    for (const Buffers& block : blocks) all += block.bytes;
    blocks.reserve(blocks.size() + 1);
    const DeviceGuard guard(device);
    const RelaxedCapture relaxed;
    blocks.push_back(BufferPool::Instance().Take(std::max(bytes, std::min(all, kMostBlockBytes)),
                                                 device, Buffers::Kind::kDirect));
  }
  auto* const parts = reinterpret_cast<layout::DeviceStats*>(
      static_cast<std::byte*>(blocks[place->block].staging) + place->offset);
  place->offset += bytes;
  return parts;
}

}  // namespace cgdebug::capture
