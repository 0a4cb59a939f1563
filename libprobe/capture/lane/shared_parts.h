// shared_parts.h: statistics that one kernel computes for all probes that follow it on the same
// tensor.
//
// Probes often see one tensor several times in a row: a module returns the tensor of its last
// child, and the gradient of a sum is also that of each operand. If nothing was captured in
// between, the tensor is the same at each of them, and one kernel on the compute path serves them
// all. Each has a leaf of its own. A kernel for another tensor need not wait for the one before it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/pool_parts.h"

namespace cgdebug {
class CountedGraph;
}

namespace cgdebug::capture {

// What a kernel on the compute path computes, and for whom.
struct SharedParts {
  const void* data = nullptr;  // of the tensor
  std::uint64_t count = 0;     // of its elements
  Dtype dtype = Dtype::kFloat32;
  const CountedGraph* counted = nullptr;  // who counts the launches of its slots
  DirectState* last_sharer = nullptr;     // the slot that was added last
  layout::DeviceStats* parts = nullptr;
  std::shared_ptr<PoolParts> memory;  // in which they lie
  std::uint32_t part_count = 0;
  std::uint64_t branch = 0;  // on which a leaf follows the kernel
};

// The parts that can be read at one place of one capture: those computed there, with nothing but
// kernels of this kind captured in between.
// Thread: one at a time (the probe table's lock).
class PartsHere {
 public:
  // Whether such a kernel is all that the next node at `position` follows.
  bool IsAt(std::uint64_t capture_id, const Position& position) const;
  // The parts of the tensor of `wanted` that were computed for slots with the same `counted`. Null
  // if there are none at `position`. Valid until the next call of Add().
  SharedParts* Find(std::uint64_t capture_id, const Position& position, const SharedParts& wanted);
  // A kernel that was added at `before` computes `parts`; the capture now stands at `after`.
  void Add(std::uint64_t capture_id, const Position& before, const Position& after,
           const SharedParts& parts);

 private:
  std::uint64_t capture_id_ = 0;
  Position position_;
  std::vector<SharedParts> parts_;
};

}  // namespace cgdebug::capture
