#include "libprobe/capture/graph/graph_capture.h"

#include <algorithm>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/graph/host_callback.h"

namespace cgdebug::capture {

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

cudaGraphNode_t AddKernelBehind(const CaptureInfo& info, cudaGraphNode_t last, Start start,
                                const cudaKernelNodeParams& kernel) {
  std::vector<cudaGraphNode_t> after(info.dependencies, info.dependencies + info.dependency_count);
  if (last != nullptr) after.push_back(last);
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
  if (start == Start::kBesideAll || (start == Start::kBesideLast && last != nullptr)) {
    std::vector<cudaGraphEdgeData> edges(after.size());
    const auto first = start == Start::kBesideAll ? edges.begin() : edges.end() - 1;
    std::for_each(first, edges.end(), [](cudaGraphEdgeData& edge) {
      edge.type = cudaGraphDependencyTypeProgrammatic;
      edge.from_port = cudaGraphKernelNodePortProgrammatic;
    });
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
  (void)start;
#endif
  CGD_CUDA(cudaGraphAddKernelNode(&node, info.graph, after.data(), after.size(), &kernel));
  return node;
}

void PutInFront(cudaGraph_t graph, cudaGraphNode_t head,
                const std::vector<cudaGraphNode_t>& heads) {
  std::size_t count = 0;
  CGD_CUDA(cudaGraphGetRootNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> first(count);
  CGD_CUDA(cudaGraphGetRootNodes(graph, first.data(), &count));
  first.resize(std::min(count, first.size()));
  for (const cudaGraphNode_t node : first) {
    if (std::find(heads.begin(), heads.end(), node) != heads.end()) continue;
#if CUDART_VERSION >= 13000
    CGD_CUDA(cudaGraphAddDependencies(graph, &head, &node, nullptr, 1));
#else
    CGD_CUDA(cudaGraphAddDependencies(graph, &head, &node, 1));
#endif
  }
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
