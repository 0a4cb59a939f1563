// leaf_branches.h: the branch of a graph under capture on which the leaves of one device follow one
// another.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>

#include "libprobe/capture/graph/graph_capture.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {

// Thread: one at a time (the probe table's lock).
class LeafBranches {
 public:
  struct Branch {
    std::uint64_t capture_id = 0;
    cudaGraphNode_t last = nullptr;   // the next leaf follows it; null if it has no leaf yet
    std::uint64_t* serial = nullptr;  // in the state of the first leaf, shared by all
    std::uint64_t number = 0;         // its own, also if it begins anew in the same capture
  };
  struct Kernel {
    const void* function = nullptr;
    int blocks = 1;
    int threads = 1;
  };

  // `overlaps`: grids of the device do (LaneDevice).
  explicit LeafBranches(bool overlaps) : overlaps_(overlaps) {}

  // Null if the capture has none. Valid until the next call of Begin() or AddLeaf().
  const Branch* Find(std::uint64_t capture_id) const;
  // Whose leaves share `serial`.
  void Begin(std::uint64_t capture_id, std::uint64_t* serial) {
    Add({capture_id, nullptr, serial});
  }

  // Adds a kernel whose results the next leaf reads. That leaf is then added behind it.
  template <typename Args>
  cudaGraphNode_t AddInFront(const CaptureInfo& info, const Kernel& kernel, Args args) {
    const Branch* const branch = Find(info.id);
    return AddBehind(info, branch == nullptr ? nullptr : branch->last,
                     overlaps_ ? Start::kBesideLast : Start::kBehindAll, kernel, &args);
  }

  // `front`: as AddInFront() returned it, or null. `start`: if there is none and grids overlap.
  template <typename Args>
  void AddLeaf(const CaptureInfo& info, const Kernel& kernel, Args args,
               cudaGraphNode_t front = nullptr, Start start = Start::kBesideLast) {
    const Branch* const branch = Find(info.id);
    if (branch != nullptr) {
      args.slot.shared_serial = branch->serial;
    } else if (args.slot.shared_serial == nullptr) {
      args.slot.shared_serial = &args.slot.state->shared_serial;
    }
    const cudaGraphNode_t before = front != nullptr    ? front
                                   : branch == nullptr ? nullptr
                                                       : branch->last;
    if (!overlaps_ || front != nullptr) start = Start::kBehindAll;
    Add({info.id, AddBehind(info, before, start, kernel, &args), args.slot.shared_serial});
  }

 private:
  static cudaGraphNode_t AddBehind(const CaptureInfo& info, cudaGraphNode_t before, Start start,
                                   const Kernel& kernel, void* args);
  // As the newest of its capture, if that has a branch already.
  void Add(Branch branch);

  const bool overlaps_;
  std::deque<Branch> branches_;  // of captures under way
  std::uint64_t newest_ = 0;     // number
};

}  // namespace cgdebug::capture
