// pool_parts.h: device memory in which the kernels of captured graphs leave parts of statistics for
// the leaves behind them.
//
// Graphs that have their memory from one pool never run at the same time: torch asks for that where
// a pool is given to torch.cuda.graph. Nobody reads a part of a graph that has ended. So each graph
// of a pool begins anew in the same memory, and a pool takes as much as its largest graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "libprobe/capture/buffers.h"
#include "proto/layout/device_stats.h"

namespace cgdebug::capture {

// Thread:   one at a time (the probe table's lock).
// Lifetime: as long as a graph that uses it may run. Its end makes no call to CUDA.
class PoolParts {
 public:
  PoolParts() = default;
  ~PoolParts();
  PoolParts(const PoolParts&) = delete;
  PoolParts& operator=(const PoolParts&) = delete;

  // What one graph has taken on one device: all before this place.
  struct Place {
    std::size_t block = 0;
    std::uint64_t offset = 0;
  };
  // Memory for `count` parts, which no other part of the graph has. Moves *place behind it.
  // Fails: throws ProbeError.
  layout::DeviceStats* Take(std::uint64_t count, int device, Place* place);

 private:
  std::map<int, std::vector<Buffers>> blocks_;  // by device
};

}  // namespace cgdebug::capture
