// direct_lane.h: the lane without host nodes: a kernel copies from the probe's staging straight
// into the ring, which is mapped into the GPU, and commits.
//
//   compute path:  copy into staging             (or: statistics of the tensor itself)
//   leaf:          staging -> ring entry, commit (or: 128 bytes of statistics)
//
// With kSlotUnstaged nothing is on the compute path, and the leaf reads the tensor itself. With
// kSlotSkipsUnchanged a kernel in front of the leaf hashes the tensor, and the leaf sends it only
// if the hash is not that of the tensor before.
//
// Why chained: the leaves of a capture follow one another on one branch. Side by side they would
// spread over the hardware's queues and, when the link is the limit, hold back the compute path.
//
// Why no host node: all host nodes of a process run on one driver thread, and a graph that has any
// makes cudaGraphLaunch block for about a replay.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/ring/segment/segment_writer.h"

namespace cgdebug::capture {

struct LaneRefusal {
  layout::LaneReason reason = layout::LaneReason::kNone;
  std::string text;  // what prevents it, and what to do
};

// The lane of one device.
// Thread:   one at a time (the probe table's lock).
// Lifetime: never freed: kernels use its memory until the process ends.
class DirectLane {
 public:
  // Why the device cannot use the lane; nullopt if it can. Determined once per device, then
  // remembered. Memory that Map() could not lock cannot be locked for the next probe either.
  static std::optional<LaneRefusal> Refused(int device);
  // Registers the memory of the slot's block with CUDA, once per extent.
  // Fails: throws ProbeError if CUDA fails for any reason other than that it cannot lock memory.
  static std::optional<LaneRefusal> Map(const ring::SegmentWriter& segment,
                                        const ring::Block& block, int device);
  // Set up when it is first asked for. Requires: !Refused(device). Fails: throws ProbeError.
  static DirectLane& On(int device);

  DirectLane(const DirectLane&) = delete;
  DirectLane& operator=(const DirectLane&) = delete;

  // Takes the memory that a slot needs which is not captured yet: `buffers` of kind kDirect, and
  // `staging`. Requires: its registration is made. Fails: throws ProbeError.
  void Prepare(ProbeSlot* slot);

  // What Capture() does first: clears the slot's state, and ties the slot to the lifetime of the
  // graph that `stream` is capturing: to `slot->counted`, if it counts that graph, or else to a
  // user object. Call it first if the graph uses the slot's memory before its leaf.
  // Requires: buffers of kind kDirect. Fails: throws ProbeError.
  void Begin(ProbeSlot* slot, void* stream);

  // The graph uses the slot's memory, but there will be no leaf that counts its runs: from here on
  // a user object keeps the slot alive. If the capture is over, the memory of all slots of the
  // graph is never freed.
  void HoldWithoutLeaf(ProbeSlot* slot, void* stream) noexcept;

  // Adds the lane to the graph that `stream` is capturing, and ties the slot to the graph's
  // lifetime: by its leaf in `slot->counted`, or else by a user object. Resets `counted` if its
  // count would not tell. A page of an op log is read where it lies.
  // Requires: the slot's block is mapped, its registration complete, its buffers
  //           of kind kDirect.
  // Fails: throws ProbeError; the graph then holds at most the kernel on the compute path.
  void Capture(ProbeSlot* slot, const ring::SegmentWriter& segment, const TensorRef& tensor,
               void* stream);

  // Statistics of an eager call, by the kernels of the lane, in stream order: 128 bytes leave the
  // device. The first call clears the slot's state. `call`, `step`: the call that it belongs to
  // (eager_calls.h); 0: the slot counts its own uses.
  // Requires: as Capture(), with buffers of kind kEagerStats.
  // Fails: throws ProbeError.
  void LaunchEagerStats(ProbeSlot* slot, const ring::SegmentWriter& segment,
                        const TensorRef& tensor, std::uint64_t call, std::int64_t step,
                        void* stream);

  // Whether a grid may start before the one that it follows ends.
  bool grids_overlap() const;

 private:
  struct State;
  explicit DirectLane(int device);
  State& state_;
};

}  // namespace cgdebug::capture
