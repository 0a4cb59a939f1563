#include "libprobe/capture/lane/leaf_branches.h"

#include <algorithm>

namespace cgdebug::capture {
namespace {

constexpr std::size_t kOpenCaptures = 32;

}  // namespace

const LeafBranches::Branch* LeafBranches::Find(std::uint64_t capture_id) const {
  const auto found = std::find_if(branches_.begin(), branches_.end(), [&](const Branch& branch) {
    return branch.capture_id == capture_id;
  });
  return found == branches_.end() ? nullptr : &*found;
}

void LeafBranches::Add(Branch branch) {
  for (Branch& known : branches_) {
    if (known.capture_id != branch.capture_id) continue;
    known.last = branch.last;
    return;
  }
  branch.number = ++newest_;
  branches_.push_back(branch);
  if (branches_.size() > kOpenCaptures) branches_.pop_front();
}

cudaGraphNode_t LeafBranches::AddBehind(const CaptureInfo& info, cudaGraphNode_t before,
                                        Start start, const Kernel& kernel, void* args) {
  void* list[] = {args};
  cudaKernelNodeParams params = {};
  params.func = const_cast<void*>(kernel.function);
  params.gridDim = dim3(static_cast<unsigned>(kernel.blocks));
  params.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  params.kernelParams = list;
  return AddKernelBehind(info, before, start, params);
}

}  // namespace cgdebug::capture
