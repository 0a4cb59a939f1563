#include "libprobe/apart/apart_graph.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "libprobe/apart/kernel_launch.h"
#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/driver_function.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/graph/graph_capture.h"
#include "libprobe/capture/graph/kernel_node.h"

namespace cgdebug::apart {
namespace {

using capture::DriverFunction;
using capture::RelaxedCapture;
using Handles = std::vector<cudaGraphNode_t>;

cudaGraph_t GraphOf(void* graph) { return static_cast<cudaGraph_t>(graph); }

Handles HandlesOf(cudaGraph_t graph) {
  std::size_t count = 0;
  CGD_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  Handles nodes(count);
  if (count > 0) CGD_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  nodes.resize(std::min(count, nodes.size()));
  return nodes;
}

// The data of the edges is asked for as well: without it CUDA refuses to tell of programmatic ones.
std::vector<Edge> EdgesOf(cudaGraph_t graph, const Handles& nodes) {
  std::unordered_map<cudaGraphNode_t, std::uint32_t> places;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    places.emplace(nodes[i], static_cast<std::uint32_t>(i));
  }
  const auto list = [graph](cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData* data,
                            std::size_t* count) {
#if CUDART_VERSION >= 13000
    return cudaGraphGetEdges(graph, from, to, data, count);
#else
    return cudaGraphGetEdges_v2(graph, from, to, data, count);
#endif
  };
  std::size_t count = 0;
  CGD_CUDA(list(nullptr, nullptr, nullptr, &count));
  Handles from(count);
  Handles to(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (count > 0) CGD_CUDA(list(from.data(), to.data(), data.data(), &count));
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < std::min(count, from.size()); ++i) {
    edges.push_back({places.at(from[i]), places.at(to[i])});
  }
  return edges;
}

const char* KindOf(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeMemcpy:
      return "memcpy";
    case cudaGraphNodeTypeMemset:
      return "memset";
    case cudaGraphNodeTypeHost:
      return "host_function";
    case cudaGraphNodeTypeEmpty:
      return "empty";
    case cudaGraphNodeTypeGraph:
      return "child_graph";
    case cudaGraphNodeTypeConditional:
      return "conditional_node";
    case cudaGraphNodeTypeMemAlloc:
    case cudaGraphNodeTypeMemFree:
      return "memory_node";
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeWaitEvent:
      return "event_node";
    default:
      return "node";
  }
}

cudaGraphNodeType TypeOf(cudaGraphNode_t node) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  CGD_CUDA(cudaGraphNodeGetType(node, &type));
  return type;
}

// An event that is recorded or awaited touches nothing, as a node that does nothing.
bool MayTouchMemory(cudaGraphNode_t node) {
  const cudaGraphNodeType type = TypeOf(node);
  return type != cudaGraphNodeTypeEmpty && type != cudaGraphNodeTypeEventRecord &&
         type != cudaGraphNodeTypeWaitEvent;
}

NodeInfo Describe(cudaGraphNode_t node) {
  const cudaGraphNodeType type = TypeOf(node);
  NodeInfo info;
  info.handle = node;
  info.kind = KindOf(type);
  info.name = info.kind;
  info.is_own = capture::NameOfNode(node).empty();
  const std::optional<capture::KernelNode> kernel = capture::KernelOf(node);
  if (!kernel) return info;
  const CUDA_KERNEL_NODE_PARAMS& params = kernel->params;
  if (!kernel->symbol.empty()) info.name = capture::ShortKernelName(kernel->symbol);
  info.grid = {params.gridDimX, params.gridDimY, params.gridDimZ};
  info.block = {params.blockDimX, params.blockDimY, params.blockDimZ};
  return info;
}

// The runtime does not know kernels of modules that others loaded, so the driver is asked.
void CheckDriver(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  throw ProbeError(ErrorKind::kSystem, std::string(call) + " failed: error " +
                                           std::to_string(status) +
                                           " of the CUDA driver. Type: cgdebug-cli doctor");
}

// Adds a copy of a node to `graph`; false for a kind of which nobody makes a copy alone.
bool AddCopy(cudaGraph_t graph, cudaGraphNode_t node) {
  using GetMemcpy = CUresult (*)(CUgraphNode, CUDA_MEMCPY3D*);
  using AddMemcpy = CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t,
                                 const CUDA_MEMCPY3D*, CUcontext);
  using GetContext = CUresult (*)(CUcontext*);
  static const auto get_memcpy =
      reinterpret_cast<GetMemcpy>(DriverFunction("cuGraphMemcpyNodeGetParams", 12000));
  static const auto add_memcpy =
      reinterpret_cast<AddMemcpy>(DriverFunction("cuGraphAddMemcpyNode", 12000));
  static const auto get_context =
      reinterpret_cast<GetContext>(DriverFunction("cuCtxGetCurrent", 12000));
  cudaGraphNode_t made = nullptr;
  switch (TypeOf(node)) {
    case cudaGraphNodeTypeEmpty:
      CGD_CUDA(cudaGraphAddEmptyNode(&made, graph, nullptr, 0));
      return true;
    case cudaGraphNodeTypeMemset: {
      cudaMemsetParams params = {};
      CGD_CUDA(cudaGraphMemsetNodeGetParams(node, &params));
      CGD_CUDA(cudaGraphAddMemsetNode(&made, graph, nullptr, 0, &params));
      return true;
    }
    case cudaGraphNodeTypeMemcpy: {
      CUDA_MEMCPY3D params = {};
      CUcontext context = nullptr;
      CheckDriver(get_memcpy(node, &params), "cuGraphMemcpyNodeGetParams");
      CheckDriver(get_context(&context), "cuCtxGetCurrent");
      CheckDriver(add_memcpy(&made, graph, nullptr, 0, &params, context), "cuGraphAddMemcpyNode");
      return true;
    }
    default:
      return false;
  }
}

// A graph that is destroyed with it.
class OwnGraph {
 public:
  OwnGraph() { CGD_CUDA(cudaGraphCreate(&graph_, 0)); }
  explicit OwnGraph(cudaGraph_t original) { CGD_CUDA(cudaGraphClone(&graph_, original)); }
  ~OwnGraph() { (void)cudaGraphDestroy(graph_); }
  OwnGraph(const OwnGraph&) = delete;
  OwnGraph& operator=(const OwnGraph&) = delete;
  cudaGraph_t get() const { return graph_; }

 private:
  cudaGraph_t graph_ = nullptr;
};

// Those that do nothing by themselves are left as they are.
void EnableNode(cudaGraphExec_t exec, cudaGraphNode_t node, bool is_on) {
  const cudaGraphNodeType type = TypeOf(node);
  if (type == cudaGraphNodeTypeEmpty) return;
  if (type != cudaGraphNodeTypeKernel && type != cudaGraphNodeTypeMemcpy &&
      type != cudaGraphNodeTypeMemset) {
    throw ProbeError(ErrorKind::kBadArgument, "the graph has a " + std::string(KindOf(type)) +
                                                  ", which CUDA cannot leave out of a launch");
  }
  CGD_CUDA(cudaGraphNodeSetEnabled(exec, node, is_on ? 1 : 0));
}

// Those of `original`, if the graph can be launched in pieces.
Handles NodesToTakeApart(cudaGraph_t original) {
  Handles nodes = HandlesOf(original);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (TypeOf(nodes[i]) != cudaGraphNodeTypeConditional) continue;
    throw ProbeError(ErrorKind::kUnsupported,
                     "its node " + std::to_string(i) +
                         " is a conditional node, which knows its condition only in one launch "
                         "with the kernel that sets it");
  }
  return nodes;
}

cudaGraphExec_t Instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  CGD_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

}  // namespace

struct ApartGraph::State {
  State(cudaGraph_t original, bool copies) : graph(original) {
    const Handles theirs = NodesToTakeApart(original);
    // Made in any case: it fails for a graph that cannot be launched in pieces.
    std::unique_ptr<OwnGraph> clone = std::make_unique<OwnGraph>(original);
    handles = theirs;
    if (copies) {
      owned = std::move(clone);
      graph = owned->get();
      for (cudaGraphNode_t& node : handles) {
        CGD_CUDA(cudaGraphNodeFindInClone(&node, node, graph));
      }
    }
    std::vector<bool> may_trail;
    for (const cudaGraphNode_t node : theirs) {
      infos.push_back(Describe(node));
      may_trail.push_back(infos.back().is_own);
    }
    dag.emplace(theirs.size(), EdgesOf(original, theirs));
    pieces = dag->Cut(may_trail);
    for (std::vector<cudaGraphExec_t>& one : execs) one.resize(pieces.size(), nullptr);
  }
  ~State() {
    for (const std::vector<cudaGraphExec_t>& list : execs) {
      for (cudaGraphExec_t exec : list) {
        if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
      }
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  cudaGraphExec_t Make(const Dag::Nodes& piece, bool with_own) const {
    if (piece.size() == 1) {
      const OwnGraph one;
      if (AddCopy(one.get(), handles[piece[0]])) return Instantiate(one.get());
    }
    const OwnGraph part(graph);
    std::unordered_set<cudaGraphNode_t> kept;
    Handles own;
    for (const std::uint32_t node : piece) {
      cudaGraphNode_t copy = nullptr;
      CGD_CUDA(cudaGraphNodeFindInClone(&copy, handles[node], part.get()));
      kept.insert(copy);
      if (infos[node].is_own) own.push_back(copy);
    }
    for (const cudaGraphNode_t node : HandlesOf(part.get())) {
      if (kept.find(node) == kept.end()) CGD_CUDA(cudaGraphDestroyNode(node));
    }
    cudaGraphExec_t exec = Instantiate(part.get());
    try {
      for (const cudaGraphNode_t node : own) EnableNode(exec, node, with_own);
    } catch (const ProbeError&) {
      (void)cudaGraphExecDestroy(exec);
      throw;
    }
    return exec;
  }

  bool HasOwn(std::size_t piece) const {
    const Dag::Nodes& nodes = pieces[piece];
    return std::any_of(nodes.begin(), nodes.end(),
                       [this](std::uint32_t node) { return infos[node].is_own; });
  }

  // Null: the piece is more than one node.
  cudaGraphNode_t OneNodeOf(std::size_t piece) const {
    const Dag::Nodes& nodes = pieces[piece];
    return nodes.size() == 1 ? handles[nodes[0]] : nullptr;
  }

  // Whether nothing of the piece is launched.
  bool IsLeftOut(std::size_t piece, bool with_own) const {
    const Dag::Nodes& nodes = pieces[piece];
    return !with_own && std::all_of(nodes.begin(), nodes.end(),
                                    [this](std::uint32_t node) { return infos[node].is_own; });
  }

  cudaGraphExec_t Get(std::size_t piece, bool with_own) {
    const bool own = HasOwn(piece);
    cudaGraphExec_t& exec = execs[own && !with_own ? 1 : 0][piece];
    if (exec == nullptr) {
      const RelaxedCapture relaxed;
      exec = Make(pieces[piece], with_own);
    }
    return exec;
  }

  std::unique_ptr<OwnGraph> owned;  // null: the original stays
  cudaGraph_t graph;                // `owned`, or the original
  Handles handles;                  // of `graph`
  std::vector<NodeInfo> infos;
  std::optional<Dag> dag;
  std::vector<Dag::Nodes> pieces;
  // With our own nodes and without them, by piece; null: not launched yet.
  std::array<std::vector<cudaGraphExec_t>, 2> execs;
};

ApartGraph::ApartGraph(void* graph, bool copies) {
  const RelaxedCapture relaxed;
  try {
    state_ = std::make_unique<State>(GraphOf(graph), copies);
  } catch (const std::logic_error& error) {  // what CUDA told contradicts itself
    throw ProbeError(ErrorKind::kSystem, error.what());
  }
}

ApartGraph::~ApartGraph() {
  try {
    const RelaxedCapture relaxed;
    state_.reset();
  } catch (const ProbeError&) {  // CUDA has ended
  }
}

const std::vector<NodeInfo>& ApartGraph::nodes() const { return state_->infos; }
const Dag& ApartGraph::dag() const { return *state_->dag; }
const std::vector<Dag::Nodes>& ApartGraph::pieces() const { return state_->pieces; }

std::optional<std::vector<MemoryPointer>> ApartGraph::Pointers(std::size_t node) const {
  if (node >= state_->handles.size()) {
    throw ProbeError(ErrorKind::kBadArgument, "the graph has no such node");
  }
  return PointersOf(state_->handles[node]);
}

void ApartGraph::Launch(std::size_t piece, void* stream, bool with_own) {
  if (piece >= state_->pieces.size()) {
    throw ProbeError(ErrorKind::kBadArgument, "the graph has no such piece");
  }
  if (state_->IsLeftOut(piece, with_own)) return;
  auto* const on = static_cast<cudaStream_t>(stream);
  cudaGraphNode_t one = state_->OneNodeOf(piece);
  if (one != nullptr && LaunchKernel(one, on)) return;
  CGD_CUDA(cudaGraphLaunch(state_->Get(piece, with_own), on));
}

void ApartGraph::Prepare(bool with_own) {
  for (std::size_t i = 0; i < state_->pieces.size(); ++i) {
    cudaGraphNode_t one = state_->OneNodeOf(i);
    const bool is_kernel = one != nullptr && CanLaunchKernel(one);
    if (!is_kernel && !state_->IsLeftOut(i, with_own)) (void)state_->Get(i, with_own);
  }
}

void ApartGraph::PutInto(void* graph) const {
  const RelaxedCapture relaxed;
  cudaGraphNode_t node = nullptr;
  CGD_CUDA(cudaGraphAddChildGraphNode(&node, GraphOf(graph), nullptr, 0, state_->graph));
}

CaptureOrder OrderOf(void* stream, const std::vector<NodeAccess>& accesses) {
  const RelaxedCapture relaxed;
  const capture::CaptureInfo info = capture::GetCaptureInfo(static_cast<cudaStream_t>(stream));
  if (info.graph == nullptr) {
    throw ProbeError(ErrorKind::kBadArgument, "the stream captures no graph");
  }
  const Handles handles = HandlesOf(info.graph);
  std::vector<bool> is_own;
  std::unordered_map<const void*, std::uint32_t> places;
  CaptureOrder order;
  for (const cudaGraphNode_t node : handles) {
    places.emplace(node, static_cast<std::uint32_t>(is_own.size()));
    is_own.push_back(capture::NameOfNode(node).empty());
    if (!is_own.back()) ++order.nodes;
  }
  try {
    const Dag dag(handles.size(), EdgesOf(info.graph, handles));
    const std::vector<Dag::Nodes> pieces = dag.Cut(is_own);
    for (const Dag::Nodes& piece : pieces) {
      if (piece.size() < 2) continue;
      for (const std::uint32_t node : piece) {
        if (!is_own[node] && MayTouchMemory(handles[node])) {
          order.unordered.push_back(handles[node]);
        }
      }
    }
    std::vector<Access> of_nodes;
    for (const NodeAccess& one : accesses) {
      const auto place = places.find(one.node);
      const bool is_here = place != places.end() && !is_own[place->second];
      // One that is left out touches nothing: the places of the others stay.
      of_nodes.push_back(is_here ? Access{place->second, one.begin, one.end, one.writes}
                                 : Access{});
    }
    if (!handles.empty()) order.conflicts = FindConflicts(dag, pieces, of_nodes);
  } catch (const std::logic_error& error) {  // what CUDA told contradicts itself
    throw ProbeError(ErrorKind::kSystem, error.what());
  }
  return order;
}

void Enable(void* exec, void* graph, bool only_own, bool is_on) {
  const RelaxedCapture relaxed;
  Handles chosen;
  for (const cudaGraphNode_t node : HandlesOf(GraphOf(graph))) {
    if (!only_own || capture::NameOfNode(node).empty()) chosen.push_back(node);
  }
  auto* const of_graph = static_cast<cudaGraphExec_t>(exec);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    try {
      EnableNode(of_graph, chosen[i], is_on);
    } catch (const ProbeError&) {
      for (std::size_t before = 0; before < i; ++before) {
        EnableNode(of_graph, chosen[before], /*is_on=*/true);
      }
      throw;
    }
  }
}

std::vector<NodeInfo> KindsOf(void* graph) {
  const RelaxedCapture relaxed;
  std::vector<NodeInfo> infos;
  for (const cudaGraphNode_t node : HandlesOf(GraphOf(graph))) {
    NodeInfo& info = infos.emplace_back();
    info.handle = node;
    info.kind = KindOf(TypeOf(node));
    info.is_own = capture::NameOfNode(node).empty();
  }
  return infos;
}

void RemoveNodes(void* graph) {
  const RelaxedCapture relaxed;
  for (const cudaGraphNode_t node : HandlesOf(GraphOf(graph))) {
    CGD_CUDA(cudaGraphDestroyNode(node));
  }
}

bool AwaitStream(void* stream, std::chrono::nanoseconds most) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kSpins{1};  // longer than nearly every kernel takes
  constexpr std::chrono::microseconds kNap{50};
  const RelaxedCapture relaxed;
  const Clock::time_point begun = Clock::now();
  for (;;) {
    const cudaError_t status = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    if (status != cudaErrorNotReady) {
      CGD_CUDA(status);
      return true;
    }
    const auto waited = Clock::now() - begun;
    if (waited >= most) return false;
    if (waited >= kSpins) std::this_thread::sleep_for(kNap);
  }
}

}  // namespace cgdebug::apart
