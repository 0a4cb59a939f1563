#include "libprobe/capture/cuda_lane.h"

#include <cuda_runtime_api.h>

#include <mutex>

#include "libprobe/capture/buffer_pool.h"
#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/host_callback.h"

namespace cgdebug::capture {
namespace {

struct CaptureInfo {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* dependencies = nullptr;  // until the next call on the stream
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t dependency_count = 0;
};

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

void AddDependency(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  CGD_CUDA(cudaGraphAddDependencies(graph, &from, &to, nullptr, 1));
#else
  CGD_CUDA(cudaGraphAddDependencies(graph, &from, &to, 1));
#endif
}

// The staging copy, on the compute path: a leaf that read the tensor itself would race with a later
// write in place, or with the allocator giving the block to somebody else.
void StageOnComputePath(const ProbeSlot& slot, const TensorRef& tensor, cudaStream_t stream) {
  const std::uint64_t bytes = slot.registration.payload_bytes;
  if (bytes != 0) {
    CGD_CUDA(cudaMemcpyAsync(slot.buffers.staging, tensor.data, bytes, cudaMemcpyDeviceToDevice,
                             stream));
  } else {
    CGD_CUDA(cudaMemsetAsync(slot.buffers.staging, 0, 1, stream));  // a node to hang the leaf on
  }
}

// CUDA allows no host node in the body of a conditional node, yet lets one be added: only the
// instantiation of the whole graph fails, with no hint at the probe. A body graph is recognised by
// two refusals that no root graph gives (driver 580, CUDA 13.0): it cannot update an exec, with
// another error than a graph that merely differs, and it cannot be instantiated alone. The first is
// cheap and clears every root graph; the second only confirms.
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

// Asked once a capture: ids are never used again.
void RefuseConditionalBody(const CaptureInfo& info) {
  static std::mutex mutex;
  static unsigned long long last_root_id = ~0ull;
  const std::lock_guard lock(mutex);
  if (info.id == last_root_id) return;
  if (IsConditionalBody(info.graph)) {
    throw Error(
        ErrorKind::kUnsupported,
        "a probe cannot lie in the body of a conditional node (torch.cond, while_loop): CUDA "
        "allows no host callback there. Move the probe in front of or behind it");
  }
  last_root_id = info.id;
}

cudaGraphNode_t AddHostNode(cudaGraph_t graph, ProbeSlot* slot) {
  cudaHostNodeParams params = {};
  params.fn = OnReplay;
  params.userData = slot;
  cudaGraphNode_t node = nullptr;
  CGD_CUDA(cudaGraphAddHostNode(&node, graph, nullptr, 0, &params));
  return node;
}

void RetainByGraph(cudaGraph_t graph, ProbeSlot* slot) {
  cudaUserObject_t object = nullptr;
  CGD_CUDA(cudaUserObjectCreate(&object, slot, OnGraphGone, 1, cudaUserObjectNoDestructorSync));
  const cudaError_t status = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (status != cudaSuccess) (void)cudaUserObjectRelease(object, 1);
  CheckCuda(status, "cudaGraphRetainUserObject");
}

}  // namespace

StreamCapture QueryCapture(void* stream) {
  const CaptureInfo info = GetCaptureInfo(static_cast<cudaStream_t>(stream));
  if (info.status == cudaStreamCaptureStatusInvalidated) {
    throw Error(ErrorKind::kSystem,
                "the stream's capture was already broken by an earlier error; nothing was probed");
  }
  return {info.status == cudaStreamCaptureStatusActive, info.id};
}

Buffers AllocateBuffers(std::uint64_t bytes, int device, bool with_staging) {
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  return BufferPool::Instance().Take(bytes, device, with_staging);
}

void FreeBuffers(const Buffers& buffers) noexcept { BufferPool::Instance().Give(buffers); }

void CaptureLeaf(ProbeSlot* slot, const TensorRef& tensor, void* stream_handle) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(tensor.device_index);
  const RelaxedCapture relaxed;
  const CaptureInfo before = GetCaptureInfo(stream);
  RefuseConditionalBody(before);
  cudaGraph_t graph = before.graph;
  // From here the driver holds `slot` until the graph is gone, also when a later step throws.
  RetainByGraph(graph, slot);
  slot->in_graph = true;
  cudaGraphNode_t callback = AddHostNode(graph, slot);
  StageOnComputePath(*slot, tensor, stream);
  const CaptureInfo info = GetCaptureInfo(stream);
  cudaGraphNode_t last = nullptr;
  const std::uint64_t bytes = slot->registration.payload_bytes;
  if (bytes != 0) {
    CGD_CUDA(cudaGraphAddMemcpyNode1D(&last, graph, info.dependencies, info.dependency_count,
                                      slot->buffers.pinned, slot->buffers.staging, bytes,
                                      cudaMemcpyDeviceToHost));
    AddDependency(graph, last, callback);
    return;
  }
  for (std::size_t i = 0; i < info.dependency_count; ++i) {
    AddDependency(graph, info.dependencies[i], callback);
  }
}

void LaunchEager(ProbeSlot* slot, const TensorRef& tensor, void* stream_handle) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(tensor.device_index);
  const std::uint64_t bytes = slot->registration.payload_bytes;
  if (bytes != 0) {
    CGD_CUDA(
        cudaMemcpyAsync(slot->buffers.pinned, tensor.data, bytes, cudaMemcpyDeviceToHost, stream));
  }
  slot->pending.fetch_add(1, std::memory_order_relaxed);
  const cudaError_t status = cudaLaunchHostFunc(stream, OnEager, slot);
  if (status != cudaSuccess) slot->pending.fetch_sub(1, std::memory_order_relaxed);
  CheckCuda(status, "cudaLaunchHostFunc");
}

}  // namespace cgdebug::capture
