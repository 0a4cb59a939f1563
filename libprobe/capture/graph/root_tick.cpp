#include "libprobe/capture/graph/root_tick.h"

#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/graph/graph_capture.h"

namespace cgdebug::capture {
namespace {

// The memory of one tick. Taken again when the root graph and all that was made from it are gone;
// never freed, because cudaFree would wait for the job's work.
struct TickMemory {
  int device = 0;
  RootTick* memory = nullptr;
  std::atomic<bool> in_use{true};
};

void CUDART_CB OnRootGone(void* user_data) {
  static_cast<TickMemory*>(user_data)->in_use.store(false, std::memory_order_release);
}

// Thread: one at a time (the probe table's lock).
TickMemory& TakeMemory(int device) {
  static auto* all = new std::deque<TickMemory>;
  for (TickMemory& one : *all) {
    if (one.device != device || one.in_use.load(std::memory_order_acquire)) continue;
    one.in_use.store(true, std::memory_order_relaxed);
    return one;
  }
  RootTick* memory = nullptr;
  CGD_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory), sizeof(RootTick)));
  TickMemory& made = all->emplace_back();
  made.device = device;
  made.memory = memory;
  return made;
}

void RetainMemory(cudaGraph_t graph, TickMemory* memory) {
  cudaUserObject_t object = nullptr;
  CGD_CUDA(cudaUserObjectCreate(&object, memory, OnRootGone, 1, cudaUserObjectNoDestructorSync));
  const cudaError_t status = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (status != cudaSuccess) (void)cudaUserObjectRelease(object, 1);
  CheckCuda(status, "cudaGraphRetainUserObject");
}

RootGraph::Tick AddTick(cudaGraph_t graph, int device, cudaStream_t set_up, TickArgs args) {
  TickMemory& taken = TakeMemory(device);
  CGD_CUDA(cudaMemsetAsync(taken.memory, 0, sizeof(RootTick), set_up));
  CGD_CUDA(cudaStreamSynchronize(set_up));
  RetainMemory(graph, &taken);
  RootGraph::Tick tick;
  tick.memory = taken.memory;
  if (args.shared_serial == nullptr) args.shared_serial = &taken.memory->serial;
  tick.serial = args.shared_serial;
  args.tick = tick.memory;
  void* list[] = {&args};
  cudaKernelNodeParams params = {};
  params.func = const_cast<void*>(TickKernel());
  params.gridDim = dim3(1);
  params.blockDim = dim3(kTickThreads);
  params.kernelParams = list;
  cudaGraphNode_t node = nullptr;
  CGD_CUDA(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
  tick.node = node;
  return tick;
}

[[noreturn]] void RefuseTick(const ProbeError& error) {
  int version = 0;
  (void)cudaDriverGetVersion(&version);
  throw ProbeError(ErrorKind::kUnsupported,
                   "the replays of a probe in the body of a conditional node cannot be counted: "
                   "this CUDA driver (" +
                       std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
                       ") takes no kernel at the head of the graph that contains the node (" +
                       error.what() + "). Move the probe in front of the node or behind it");
}

}  // namespace

const RootGraph::Tick& EnsureTick(RootGraph* root, int device, cudaStream_t set_up,
                                  const TickArgs& args) {
  auto* graph = static_cast<cudaGraph_t>(root->graph);
  try {
    auto found = root->ticks.find(device);
    if (found == root->ticks.end()) {
      found = root->ticks.emplace(device, AddTick(graph, device, set_up, args)).first;
    }
    // Every time: the graph may have nodes now that it did not have then.
    std::vector<cudaGraphNode_t> ticks;
    for (const auto& [one, tick] : root->ticks) {
      ticks.push_back(static_cast<cudaGraphNode_t>(tick.node));
    }
    PutInFront(graph, static_cast<cudaGraphNode_t>(found->second.node), ticks);
    return found->second;
  } catch (const ProbeError& error) {
    RefuseTick(error);
  }
}

void TellReplays(RootGraph* root, int device, cudaStream_t set_up, layout::SlotHead* head) {
  RootGraph::Tick& tick = root->ticks.at(device);
  if (tick.head_count == RootTick::kMaxHeads) return;  // their replays in all stay unknown
  // The head first: a replay may be under way.
  CGD_CUDA(cudaMemcpyAsync(&tick.memory->heads[tick.head_count], &head, sizeof(head),
                           cudaMemcpyHostToDevice, set_up));
  ++tick.head_count;
  CGD_CUDA(cudaMemcpyAsync(&tick.memory->head_count, &tick.head_count, sizeof(tick.head_count),
                           cudaMemcpyHostToDevice, set_up));
  CGD_CUDA(cudaStreamSynchronize(set_up));
}

}  // namespace cgdebug::capture
