#include "libprobe/capture/graph/capture_nodes.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/driver_function.h"
#include "libprobe/capture/graph/graph_capture.h"
#include "libprobe/capture/graph/host_callback.h"
#include "libprobe/capture/graph/kernel_node.h"
#include "libprobe/capture/graph/node_kind.h"
#include "libprobe/capture/graph/probe_slot.h"

namespace cgdebug::capture {
namespace {

using Nodes = std::vector<cudaGraphNode_t>;
using Edges = std::vector<cudaGraphEdgeData>;

static_assert(sizeof(cudaGraphEdgeData) == sizeof(std::uint64_t));

cudaStream_t StreamOf(void* stream) { return static_cast<cudaStream_t>(stream); }

Nodes NodesOf(const Position& position) {
  Nodes nodes;
  for (void* node : position.nodes) nodes.push_back(static_cast<cudaGraphNode_t>(node));
  return nodes;
}

Edges EdgesOf(const Position& position) {
  Edges edges(position.edges.size());
  if (!edges.empty()) {
    std::memcpy(edges.data(), position.edges.data(), edges.size() * sizeof(edges[0]));
  }
  return edges;
}

// Calls list(nodes, edges, &count) with more room until everything fits.
template <typename List>
Nodes ListNodes(const List& list) {
  for (std::size_t room = 8;; room *= 4) {
    Nodes nodes(room);
    Edges edges(room);
    std::size_t count = room;
    CGD_CUDA(list(nodes.data(), edges.data(), &count));
    if (count == room) continue;  // there may be more
    nodes.resize(count);
    return nodes;
  }
}

// The edges are asked for as well: without them CUDA refuses to tell of programmatic ones.
Nodes NodesBefore(cudaGraphNode_t node) {
  return ListNodes([node](cudaGraphNode_t* nodes, cudaGraphEdgeData* edges, std::size_t* count) {
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependencies(node, nodes, edges, count);
#else
    return cudaGraphNodeGetDependencies_v2(node, nodes, edges, count);
#endif
  });
}

Nodes NodesAfter(cudaGraphNode_t node) {
  return ListNodes([node](cudaGraphNode_t* nodes, cudaGraphEdgeData* edges, std::size_t* count) {
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependentNodes(node, nodes, edges, count);
#else
    return cudaGraphNodeGetDependentNodes_v2(node, nodes, edges, count);
#endif
  });
}

// The slot that a host node of the callback lane sends; null for any other node.
const ProbeSlot* SlotOfHostNode(cudaGraphNode_t node) {
  if (TypeOf(node) != cudaGraphNodeTypeHost) return nullptr;
  cudaHostNodeParams params = {};
  CGD_CUDA(cudaGraphHostNodeGetParams(node, &params));
  return params.fn == OnReplay ? static_cast<const ProbeSlot*>(params.userData) : nullptr;
}

// What a copy or a memset writes to; null for any other node, and where CUDA does not tell.
const void* DestinationOf(cudaGraphNode_t node) {
  switch (TypeOf(node)) {
    case cudaGraphNodeTypeMemcpy: {
      cudaMemcpy3DParms params = {};
      if (cudaGraphMemcpyNodeGetParams(node, &params) == cudaSuccess) return params.dstPtr.ptr;
      break;
    }
    case cudaGraphNodeTypeMemset: {
      cudaMemsetParams params = {};
      if (cudaGraphMemsetNodeGetParams(node, &params) == cudaSuccess) return params.dst;
      break;
    }
    default:
      return nullptr;
  }
  (void)cudaGetLastError();
  return nullptr;
}

// Whether the callback lane made this node: its host node, or a copy into memory of its slot. The
// copy to staging memory lies up to two nodes in front of the host node.
bool IsOfCallbackLane(cudaGraphNode_t node) {
  if (SlotOfHostNode(node) != nullptr) return true;
  const void* const destination = DestinationOf(node);
  if (destination == nullptr) return false;
  Nodes after = NodesAfter(node);
  const std::size_t next = after.size();
  for (std::size_t i = 0; i < next; ++i) {
    if (TypeOf(after[i]) != cudaGraphNodeTypeMemcpy) continue;
    const Nodes further = NodesAfter(after[i]);
    after.insert(after.end(), further.begin(), further.end());
  }
  return std::any_of(after.begin(), after.end(), [destination](cudaGraphNode_t other) {
    const ProbeSlot* const slot = SlotOfHostNode(other);
    return slot != nullptr &&
           (destination == slot->buffers.pinned || destination == slot->buffers.staging);
  });
}

void Update(void* stream, const Position& position, unsigned int flags) {
  const RelaxedCapture relaxed;
  Nodes nodes = NodesOf(position);
  const Edges edges = EdgesOf(position);
#if CUDART_VERSION >= 13000
  CGD_CUDA(cudaStreamUpdateCaptureDependencies(StreamOf(stream), nodes.data(), edges.data(),
                                               nodes.size(), flags));
#else
  CGD_CUDA(cudaStreamUpdateCaptureDependencies_v2(StreamOf(stream), nodes.data(), edges.data(),
                                                  nodes.size(), flags));
#endif
}

}  // namespace

// The runtime does not know kernels of modules that others loaded, such as Triton's.
std::optional<CUDA_KERNEL_NODE_PARAMS> KernelOf(cudaGraphNode_t node) {
  using GetParams = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
  static const auto params_of =
      reinterpret_cast<GetParams>(DriverFunction("cuGraphKernelNodeGetParams", 12000));
  if (TypeOf(node) != cudaGraphNodeTypeKernel) return std::nullopt;
  CUDA_KERNEL_NODE_PARAMS params = {};
  if (params_of(node, &params) != CUDA_SUCCESS) return CUDA_KERNEL_NODE_PARAMS{};
  return params;
}

std::string SymbolOf(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  using GetFunctionName = CUresult (*)(const char**, CUfunction);
  using GetKernelName = CUresult (*)(const char**, CUkernel);
  static const auto name_of_function =
      reinterpret_cast<GetFunctionName>(DriverFunction("cuFuncGetName", 12030));
  static const auto name_of_kernel =
      reinterpret_cast<GetKernelName>(DriverFunction("cuKernelGetName", 12030));
  const char* name = nullptr;
  const bool is_known =
      (kernel.func != nullptr && name_of_function(&name, kernel.func) == CUDA_SUCCESS) ||
      (kernel.kern != nullptr && name_of_kernel(&name, kernel.kern) == CUDA_SUCCESS);
  return is_known ? name : std::string();
}

Position PositionOf(void* stream) {
  const RelaxedCapture relaxed;
  const CaptureInfo info = GetCaptureInfo(StreamOf(stream));
  Position position;
  position.nodes.assign(info.dependencies, info.dependencies + info.dependency_count);
  position.edges.resize(info.dependency_count);  // zeros: ordinary edges
  if (info.edges != nullptr && info.dependency_count > 0) {
    std::memcpy(position.edges.data(), info.edges,
                info.dependency_count * sizeof(cudaGraphEdgeData));
  }
  return position;
}

void SetPosition(void* stream, const Position& position) {
  Update(stream, position, cudaStreamSetCaptureDependencies);
}

void Join(void* stream, const Position& position) {
  const Position now = PositionOf(stream);
  Position more;
  for (std::size_t i = 0; i < position.nodes.size(); ++i) {
    if (std::find(now.nodes.begin(), now.nodes.end(), position.nodes[i]) != now.nodes.end()) {
      continue;
    }
    more.nodes.push_back(position.nodes[i]);
    more.edges.push_back(position.edges[i]);
  }
  if (!more.nodes.empty()) Update(stream, more, cudaStreamAddCaptureDependencies);
}

void PutBehind(void* stream, const Position& position, const std::vector<void*>& later) {
  const RelaxedCapture relaxed;
  const CaptureInfo info = GetCaptureInfo(StreamOf(stream));
  for (void* node : later) {
    const Nodes before = NodesBefore(static_cast<cudaGraphNode_t>(node));
    for (void* first : position.nodes) {
      const auto from = static_cast<cudaGraphNode_t>(first);
      const auto to = static_cast<cudaGraphNode_t>(node);
      if (from == to || std::find(before.begin(), before.end(), from) != before.end()) continue;
#if CUDART_VERSION >= 13000
      CGD_CUDA(cudaGraphAddDependencies(info.graph, &from, &to, nullptr, 1));
#else
      CGD_CUDA(cudaGraphAddDependencies(info.graph, &from, &to, 1));
#endif
    }
  }
}

std::string NameOfNode(void* handle) {
  const RelaxedCapture relaxed;
  const auto node = static_cast<cudaGraphNode_t>(handle);
  const std::optional<CUDA_KERNEL_NODE_PARAMS> kernel = KernelOf(node);
  if (!kernel) return IsOfCallbackLane(node) ? std::string() : KindOf(TypeOf(node));
  const std::string symbol = SymbolOf(*kernel);
  if (symbol.empty()) return KindOf(cudaGraphNodeTypeKernel);
  return IsOwnKernel(symbol) ? std::string() : ShortKernelName(symbol);
}

std::vector<void*> CaptureNodes::Take(void* stream) {
  const RelaxedCapture relaxed;
  const CaptureInfo info = GetCaptureInfo(StreamOf(stream));
  if (info.status != cudaStreamCaptureStatusActive || info.id != capture_id_) return {};
  std::vector<void*> taken;
  Nodes unknown(info.dependencies, info.dependencies + info.dependency_count);
  while (!unknown.empty()) {
    const cudaGraphNode_t node = unknown.back();
    unknown.pop_back();
    if (!known_.insert(node).second) continue;
    if (MayWrite(TypeOf(node))) taken.push_back(node);
    const Nodes before = NodesBefore(node);
    unknown.insert(unknown.end(), before.begin(), before.end());
  }
  std::reverse(taken.begin(), taken.end());
  return taken;
}

std::vector<void*> CaptureNodes::TakeRest(void* stream) {
  const RelaxedCapture relaxed;
  const CaptureInfo info = GetCaptureInfo(StreamOf(stream));
  if (info.status != cudaStreamCaptureStatusActive || info.id != capture_id_) return {};
  std::size_t count = 0;
  CGD_CUDA(cudaGraphGetNodes(info.graph, nullptr, &count));
  Nodes all(count);
  if (count > 0) CGD_CUDA(cudaGraphGetNodes(info.graph, all.data(), &count));
  all.resize(std::min(count, all.size()));
  std::vector<void*> taken;
  for (const cudaGraphNode_t node : all) {
    if (known_.insert(node).second && MayWrite(TypeOf(node))) taken.push_back(node);
  }
  return taken;
}

}  // namespace cgdebug::capture
