#include "libprobe/capture/lane/cuda_lane.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/graph/graph_capture.h"
#include "libprobe/capture/graph/host_callback.h"
#include "libprobe/capture/memory/buffer_pool.h"

namespace cgdebug::capture {
namespace {

// Copies the elements of a tensor, which may lie apart, to where they lie side by side.
void CopyElements(void* to, const TensorRef& tensor, std::uint64_t bytes, cudaMemcpyKind kind,
                  cudaStream_t stream) {
  if (tensor.element_stride == 1) {
    CGD_CUDA(cudaMemcpyAsync(to, tensor.data, bytes, kind, stream));
    return;
  }
  const std::uint64_t size = layout::DtypeBytes(tensor.dtype);
  const std::uint64_t pitch = size * tensor.element_stride;
  const std::uint64_t count = bytes / size;
  constexpr std::uint64_t kMostPitch = (std::uint64_t{1} << 31) - 1;
  if (pitch <= kMostPitch) {
    CGD_CUDA(cudaMemcpy2DAsync(to, size, tensor.data, pitch, size, count, kind, stream));
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) {  // few: they are 2 GiB apart
    CGD_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(to) + i * size,
                             static_cast<const std::byte*>(tensor.data) + i * pitch, size, kind,
                             stream));
  }
}

// The staging copy on the compute path. A leaf that read the tensor itself would race with a later
// write in place, or with the allocator giving the block away.
void StageOnComputePath(const ProbeSlot& slot, const TensorRef& tensor, cudaStream_t stream) {
  const std::uint64_t bytes = slot.registration.payload_bytes;
  if (bytes != 0) {
    CopyElements(slot.buffers.staging, tensor, bytes, cudaMemcpyDeviceToDevice, stream);
  } else {
    CGD_CUDA(cudaMemsetAsync(slot.buffers.staging, 0, 1, stream));  // a node to hang the leaf on
  }
}

[[noreturn]] void RefuseBody(const layout::SlotRegistration& registration) {
  const auto reason = static_cast<layout::LaneReason>(registration.lane_reason);
  throw ProbeError(
      ErrorKind::kUnsupported,
      "a probe in the body of a conditional node (torch.cond, while_loop) cannot use the callback "
      "lane, because CUDA allows no host node there. The direct lane works there, but this probe "
      "is in the callback lane (" +
          std::string(layout::TextOf(reason)) + "). " +
          (reason == layout::LaneReason::kAsked ? "Take lane=\"callback\" and CGDEBUG_LANE away"
                                                : "Type: cgdebug-cli doctor") +
          ", or move the probe in front of the node or behind it");
}

void AddHostNode(cudaGraph_t graph, const cudaGraphNode_t* after, std::size_t count,
                 ProbeSlot* slot) {
  std::vector<cudaGraphNode_t> all(after, after + count);
  // The daemon must find the other slot's snapshot when it finds this one.
  if (slot->reference != nullptr) {
    all.push_back(static_cast<cudaGraphNode_t>(slot->reference->host_node));
  }
  cudaHostNodeParams params = {};
  params.fn = OnReplay;
  params.userData = slot;
  cudaGraphNode_t node = nullptr;
  CGD_CUDA(cudaGraphAddHostNode(&node, graph, all.data(), all.size(), &params));
  slot->host_node = node;
}

}  // namespace

StreamCapture QueryCapture(void* stream) {
  const CaptureInfo info = GetCaptureInfo(static_cast<cudaStream_t>(stream));
  if (info.status == cudaStreamCaptureStatusInvalidated) {
    throw ProbeError(
        ErrorKind::kSystem,
        "the stream's capture was already broken by an earlier error; nothing was probed. If no "
        "error came before this one, Python may have collected a dead CUDA graph during the "
        "capture: call gc.collect() before it");
  }
  return {info.status == cudaStreamCaptureStatusActive, info.id};
}

std::optional<std::uint64_t> CountNodesOfCapture(void* stream) noexcept {
  try {
    const CaptureInfo info = GetCaptureInfo(static_cast<cudaStream_t>(stream));
    if (info.status != cudaStreamCaptureStatusActive) return std::nullopt;
    const RelaxedCapture relaxed;
    return CountNodes(info.graph);
  } catch (const ProbeError&) {
    return std::nullopt;
  }
}

std::optional<std::uint64_t> CountNodes(void* graph) noexcept {
  std::size_t count = 0;
  if (cudaGraphGetNodes(static_cast<cudaGraph_t>(graph), nullptr, &count) == cudaSuccess) {
    return count;
  }
  (void)cudaGetLastError();
  return std::nullopt;
}

Buffers AllocateBuffers(std::uint64_t bytes, int device, Buffers::Kind kind) {
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  return BufferPool::Instance().Take(bytes, device, kind);
}

void FreeBuffers(const Buffers& buffers) noexcept {
  if (buffers.kind != Buffers::Kind::kNone) BufferPool::Instance().Give(buffers);
}

std::uint64_t DeviceBytes() noexcept { return BufferPool::Instance().device_bytes(); }

void TrimBuffers() noexcept { BufferPool::Instance().Trim(); }

void SetFallbackAllocator(const DeviceAllocator& allocator) {
  BufferPool::Instance().SetFallback(allocator);
}

void CaptureLeaf(ProbeSlot* slot, const TensorRef& tensor, void* stream_handle) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(tensor.device_index);
  const RelaxedCapture relaxed;
  if ((slot->registration.flags & layout::kSlotInBody) != 0) RefuseBody(slot->registration);
  cudaGraph_t graph = GetCaptureInfo(stream).graph;
  RetainByGraph(graph, slot);
  StageOnComputePath(*slot, tensor, stream);
  const CaptureInfo info = GetCaptureInfo(stream);
  const std::uint64_t bytes = slot->registration.payload_bytes;
  if (bytes == 0) {
    AddHostNode(graph, info.dependencies, info.dependency_count, slot);
    return;
  }
  cudaGraphNode_t last = nullptr;
  CGD_CUDA(cudaGraphAddMemcpyNode1D(&last, graph, info.dependencies, info.dependency_count,
                                    slot->buffers.pinned, slot->buffers.staging, bytes,
                                    cudaMemcpyDeviceToHost));
  AddHostNode(graph, &last, 1, slot);  // last: a host node makes each launch of the graph wait
}

void LaunchEager(ProbeSlot* slot, const TensorRef& tensor, std::uint64_t call, std::int64_t step,
                 void* stream_handle) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(tensor.device_index);
  const std::uint64_t bytes = slot->registration.payload_bytes;
  if (bytes != 0) {
    CopyElements(slot->buffers.pinned, tensor, bytes, cudaMemcpyDeviceToHost, stream);
  }
  EagerLook* const look = slot->looks.Take({slot, call, step});
  slot->life.Pin();
  const cudaError_t status = cudaLaunchHostFunc(stream, OnEager, look);
  if (status != cudaSuccess) {
    slot->looks.GiveBack(look);
    slot->life.Unpin();
  }
  CheckCuda(status, "cudaLaunchHostFunc");
}

}  // namespace cgdebug::capture
