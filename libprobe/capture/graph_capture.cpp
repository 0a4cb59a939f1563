#include "libprobe/capture/graph_capture.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/host_callback.h"

namespace cgdebug::capture {
namespace {

// CUDA forbids host nodes in the body of a conditional node, yet lets them be added. Only
// instantiating the whole graph fails, and that error does not name the probe. Two refusals reveal
// a body graph (driver 580, CUDA 13.0): it cannot update an exec, with another error than a graph
// that merely differs, and it cannot be instantiated alone. The first check is cheap and clears
// every root graph; the second only confirms.
bool IsConditionalBody(cudaGraph_t graph) {
  static const cudaGraphExec_t one_node = [] {
    cudaGraph_t tiny = nullptr;
    cudaGraphNode_t node = nullptr;
    cudaGraphExec_t exec = nullptr;
    CGD_CUDA(cudaGraphCreate(&tiny, 0));
    CGD_CUDA(cudaGraphAddEmptyNode(&node, tiny, nullptr, 0));
    CGD_CUDA(cudaGraphInstantiate(&exec, tiny, 0));
    CGD_CUDA(cudaGraphDestroy(tiny));
    return exec;
  }();
  cudaGraphExecUpdateResultInfo ignored = {};
  const cudaError_t update = cudaGraphExecUpdate(one_node, graph, &ignored);
  (void)cudaGetLastError();
  if (update != cudaErrorInvalidValue) return false;
  cudaGraphExec_t exec = nullptr;
  const cudaError_t instantiate = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGetLastError();
  if (instantiate == cudaSuccess) (void)cudaGraphExecDestroy(exec);
  return instantiate == cudaErrorNotSupported;
}

}  // namespace

CaptureInfo GetCaptureInfo(cudaStream_t stream) {
  CaptureInfo info;
#if CUDART_VERSION >= 13000
  CGD_CUDA(cudaStreamGetCaptureInfo(stream, &info.status, &info.id, &info.graph, &info.dependencies,
                                    &info.edges, &info.dependency_count));
#else
  CGD_CUDA(cudaStreamGetCaptureInfo_v3(stream, &info.status, &info.id, &info.graph,
                                       &info.dependencies, &info.edges, &info.dependency_count));
#endif
  return info;
}

cudaGraphNode_t AddKernelBehind(const CaptureInfo& info, cudaGraphNode_t last, bool overlap,
                                const cudaKernelNodeParams& kernel) {
  std::vector<cudaGraphNode_t> after(info.dependencies, info.dependencies + info.dependency_count);
  if (last != nullptr) after.push_back(last);
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
  if (last != nullptr && overlap) {
    std::vector<cudaGraphEdgeData> edges(after.size());
    edges.back().type = cudaGraphDependencyTypeProgrammatic;
    edges.back().from_port = cudaGraphKernelNodePortProgrammatic;
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeKernel;
    params.kernel.func = kernel.func;
    params.kernel.gridDim = kernel.gridDim;
    params.kernel.blockDim = kernel.blockDim;
    params.kernel.kernelParams = kernel.kernelParams;
    CGD_CUDA(
        cudaGraphAddNode(&node, info.graph, after.data(), edges.data(), after.size(), &params));
    return node;
  }
#else
  (void)overlap;
#endif
  CGD_CUDA(cudaGraphAddKernelNode(&node, info.graph, after.data(), after.size(), &kernel));
  return node;
}

// Determined once per capture: ids are never reused. Several captures may be under way.
void RefuseConditionalBody(const CaptureInfo& info) {
  static std::mutex mutex;
  static std::array<unsigned long long, 16> root_ids = {};  // ids start at 1
  static std::size_t next = 0;
  const std::lock_guard lock(mutex);
  if (std::find(root_ids.begin(), root_ids.end(), info.id) != root_ids.end()) return;
  if (IsConditionalBody(info.graph)) {
    throw ProbeError(
        ErrorKind::kUnsupported,
        "a probe cannot lie in the body of a conditional node (torch.cond, while_loop): the body "
        "runs any number of times in one replay, so its snapshots would carry wrong replay "
        "numbers. Move the probe in front of or behind it");
  }
  root_ids[next++ % root_ids.size()] = info.id;
}

void RetainByGraph(cudaGraph_t graph, ProbeSlot* slot) {
  cudaUserObject_t object = nullptr;
  CGD_CUDA(cudaUserObjectCreate(&object, slot, OnGraphGone, 1, cudaUserObjectNoDestructorSync));
  slot->life.HoldByGraph();  // the object refers to it, even if the graph does not take the object
  const cudaError_t status = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (status != cudaSuccess) (void)cudaUserObjectRelease(object, 1);
  CheckCuda(status, "cudaGraphRetainUserObject");
}

}  // namespace cgdebug::capture
