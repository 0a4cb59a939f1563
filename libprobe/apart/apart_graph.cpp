#include "libprobe/apart/apart_graph.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <unordered_map>

#include "libprobe/apart/kernel_launch.h"
#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/driver_function.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/graph/graph_capture.h"
#include "libprobe/capture/graph/kernel_node.h"
#include "libprobe/capture/graph/node_kind.h"

namespace cgdebug::apart {
namespace {

using capture::DriverFunction;
using capture::RelaxedCapture;
using capture::TypeOf;
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

NodeInfo Describe(cudaGraphNode_t node) {
  const cudaGraphNodeType type = TypeOf(node);
  NodeInfo info;
  info.handle = node;
  info.kind = capture::KindOf(type);
  info.name = info.kind;
  info.may_write = capture::MayWrite(type);
  info.is_own = capture::NameOfNode(node).empty();
  const std::optional<CUDA_KERNEL_NODE_PARAMS> kernel = capture::KernelOf(node);
  if (!kernel) return info;
  const std::string symbol = capture::SymbolOf(*kernel);
  if (!symbol.empty()) info.name = capture::ShortKernelName(symbol);
  info.grid = {kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ};
  info.block = {kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ};
  return info;
}

// The runtime does not know kernels of modules that others loaded, so the driver is asked.
void CheckDriver(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  throw ProbeError(ErrorKind::kSystem, std::string(call) + " failed: error " +
                                           std::to_string(status) +
                                           " of the CUDA driver. Type: cgdebug-cli doctor");
}

// Adds a copy of a kernel to `graph`, behind `before`.
cudaGraphNode_t AddKernel(cudaGraph_t graph, cudaGraphNode_t node, const Handles& before) {
  using Add = CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t,
                           const CUDA_KERNEL_NODE_PARAMS*);
  using CopyAttributes = CUresult (*)(CUgraphNode, CUgraphNode);
  static const auto add = reinterpret_cast<Add>(DriverFunction("cuGraphAddKernelNode", 12000));
  static const auto copy_attributes =
      reinterpret_cast<CopyAttributes>(DriverFunction("cuGraphKernelNodeCopyAttributes", 12000));
  const std::optional<CUDA_KERNEL_NODE_PARAMS> kernel = capture::KernelOf(node);
  if (!kernel || kernel->blockDimX == 0) {
    throw ProbeError(ErrorKind::kSystem, "CUDA does not tell what a kernel of the graph is given");
  }
  cudaGraphNode_t made = nullptr;
  CheckDriver(add(&made, graph, before.data(), before.size(), &*kernel), "cuGraphAddKernelNode");
  CheckDriver(copy_attributes(made, node), "cuGraphKernelNodeCopyAttributes");
  return made;
}

cudaGraphNode_t AddMemcpy(cudaGraph_t graph, cudaGraphNode_t node, const Handles& before) {
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
  CUDA_MEMCPY3D params = {};
  CUcontext context = nullptr;
  CheckDriver(get_memcpy(node, &params), "cuGraphMemcpyNodeGetParams");
  CheckDriver(get_context(&context), "cuCtxGetCurrent");
  cudaGraphNode_t made = nullptr;
  CheckDriver(add_memcpy(&made, graph, before.data(), before.size(), &params, context),
              "cuGraphAddMemcpyNode");
  return made;
}

// Adds a copy of a node to `graph`, behind `before`. Requires: the node can be copied (NeedsOf).
cudaGraphNode_t AddCopy(cudaGraph_t graph, cudaGraphNode_t node, const Handles& before) {
  const cudaGraphNodeType type = TypeOf(node);
  if (type == cudaGraphNodeTypeKernel) return AddKernel(graph, node, before);
  if (type == cudaGraphNodeTypeMemcpy) return AddMemcpy(graph, node, before);
  cudaGraphNode_t made = nullptr;
  switch (type) {
    case cudaGraphNodeTypeMemset: {
      cudaMemsetParams params = {};
      CGD_CUDA(cudaGraphMemsetNodeGetParams(node, &params));
      CGD_CUDA(cudaGraphAddMemsetNode(&made, graph, before.data(), before.size(), &params));
      break;
    }
    case cudaGraphNodeTypeHost: {
      cudaHostNodeParams params = {};
      CGD_CUDA(cudaGraphHostNodeGetParams(node, &params));
      CGD_CUDA(cudaGraphAddHostNode(&made, graph, before.data(), before.size(), &params));
      break;
    }
    case cudaGraphNodeTypeGraph: {
      cudaGraph_t child = nullptr;
      CGD_CUDA(cudaGraphChildGraphNodeGetGraph(node, &child));
      CGD_CUDA(cudaGraphAddChildGraphNode(&made, graph, before.data(), before.size(), child));
      break;
    }
    case cudaGraphNodeTypeEventRecord: {
      cudaEvent_t event = nullptr;
      CGD_CUDA(cudaGraphEventRecordNodeGetEvent(node, &event));
      CGD_CUDA(cudaGraphAddEventRecordNode(&made, graph, before.data(), before.size(), event));
      break;
    }
    case cudaGraphNodeTypeWaitEvent: {
      cudaEvent_t event = nullptr;
      CGD_CUDA(cudaGraphEventWaitNodeGetEvent(node, &event));
      CGD_CUDA(cudaGraphAddEventWaitNode(&made, graph, before.data(), before.size(), event));
      break;
    }
    default:
      CGD_CUDA(cudaGraphAddEmptyNode(&made, graph, before.data(), before.size()));
  }
  return made;
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

// What a node needs to be run apart from its graph.
enum class Needs {
  kNothing,
  kRemoval,  // it can be copied, and cannot be left out of a launch of its graph
  kItsGraph  // it cannot be copied
};
Needs NeedsOf(cudaGraphNode_t node) {
  switch (TypeOf(node)) {
    case cudaGraphNodeTypeKernel:
      return IsUpdatedByKernels(node) ? Needs::kItsGraph : Needs::kNothing;
    case cudaGraphNodeTypeMemcpy:
    case cudaGraphNodeTypeMemset:
    case cudaGraphNodeTypeEmpty:
    // Events: EnableNode()
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeWaitEvent:
      return Needs::kNothing;
    case cudaGraphNodeTypeHost:
    case cudaGraphNodeTypeGraph:
      return Needs::kRemoval;
    default:
      return Needs::kItsGraph;
  }
}

// Nodes that do nothing are left as they are, and so are events, which can then be recorded once
// more, earlier: who waits for one from now on waits for the later record.
void EnableNode(cudaGraphExec_t exec, cudaGraphNode_t node, bool is_on) {
  const cudaGraphNodeType type = TypeOf(node);
  if (type != cudaGraphNodeTypeKernel && type != cudaGraphNodeTypeMemcpy &&
      type != cudaGraphNodeTypeMemset) {
    return;
  }
  CGD_CUDA(cudaGraphNodeSetEnabled(exec, node, is_on ? 1 : 0));
}

cudaGraphExec_t Instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  CGD_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

}  // namespace

struct ApartGraph::State {
  State(cudaGraph_t original, bool copies, const std::unordered_set<const void*>& plain)
      : graph(original), handles(HandlesOf(original)) {
    const auto is_free = [&](Needs most) {
      return std::all_of(handles.begin(), handles.end(),
                         [&](cudaGraphNode_t node) { return NeedsOf(node) <= most; });
    };
    std::vector<bool> may_trail;
    for (const cudaGraphNode_t node : handles) {
      infos.push_back(Describe(node));
      may_trail.push_back(infos.back().is_own);
    }
    dag.emplace(handles.size(), EdgesOf(original, handles));
    pieces = dag->Cut(may_trail);
    if (!is_free(copies ? Needs::kRemoval : Needs::kNothing)) {
      JoinOpaque(plain);
    } else if (copies) {
      owned = std::make_unique<OwnGraph>(original);
      graph = owned->get();
      for (cudaGraphNode_t& node : handles) {
        CGD_CUDA(cudaGraphNodeFindInClone(&node, node, graph));
      }
    }
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

  // Makes the pieces between the first and the last node that needs something one piece, which
  // begins with the first kernel that is not plain, if that comes earlier.
  void JoinOpaque(const std::unordered_set<const void*>& plain) {
    const auto has = [&](const Dag::Nodes& piece, const auto& is_one) {
      return std::any_of(piece.begin(), piece.end(), is_one);
    };
    const auto is_bound = [&](const Dag::Nodes& piece) {
      return has(piece,
                 [&](std::uint32_t node) { return NeedsOf(handles[node]) > Needs::kNothing; });
    };
    const auto begins = [&](const Dag::Nodes& piece) {
      return is_bound(piece) || has(piece, [&](std::uint32_t node) {
               return TypeOf(handles[node]) == cudaGraphNodeTypeKernel && !infos[node].is_own &&
                      plain.find(handles[node]) == plain.end();
             });
    };
    const auto first = std::find_if(pieces.begin(), pieces.end(), begins);
    const auto end = std::find_if(pieces.rbegin(), pieces.rend(), is_bound).base();
    for (auto piece = first + 1; piece != end; ++piece) {
      first->insert(first->end(), piece->begin(), piece->end());
    }
    opaque = static_cast<std::size_t>(first - pieces.begin());
    pieces.erase(first + 1, end);
  }

  // Without `with_own` our own nodes are empty ones, which keep the others in order.
  cudaGraphExec_t Make(const Dag::Nodes& piece, bool with_own) const {
    const OwnGraph part;
    std::unordered_map<std::uint32_t, cudaGraphNode_t> made;
    for (const std::uint32_t node : piece) {
      Handles before;
      for (const std::uint32_t other : dag->before(node)) {
        const auto copy = made.find(other);
        if (copy != made.end()) before.push_back(copy->second);
      }
      std::sort(before.begin(), before.end());  // an edge may be there twice
      before.erase(std::unique(before.begin(), before.end()), before.end());
      cudaGraphNode_t& copy = made[node];
      if (infos[node].is_own && !with_own) {
        CGD_CUDA(cudaGraphAddEmptyNode(&copy, part.get(), before.data(), before.size()));
      } else {
        copy = AddCopy(part.get(), handles[node], before);
      }
    }
    return Instantiate(part.get());
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
  std::optional<std::size_t> opaque;  // by its place in `pieces`
  // With our own nodes and without them, by piece; null: not launched yet.
  std::array<std::vector<cudaGraphExec_t>, 2> execs;
};

ApartGraph::ApartGraph(void* graph, bool copies, const std::unordered_set<const void*>& plain) {
  const RelaxedCapture relaxed;
  try {
    state_ = std::make_unique<State>(GraphOf(graph), copies, plain);
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
std::optional<std::size_t> ApartGraph::opaque() const { return state_->opaque; }

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
  if (piece == state_->opaque) {
    throw ProbeError(ErrorKind::kBadArgument, "the piece runs with its graph alone");
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
    const bool is_made = (one != nullptr && CanLaunchKernel(one)) || i == state_->opaque;
    if (!is_made && !state_->IsLeftOut(i, with_own)) (void)state_->Get(i, with_own);
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
        if (!is_own[node] && capture::MayTouchMemory(TypeOf(handles[node]))) {
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

void ApartGraph::Enable(void* exec, bool only_own, bool is_on) {
  const RelaxedCapture relaxed;
  Handles chosen;
  for (std::size_t piece = 0; piece < state_->pieces.size(); ++piece) {
    if (piece == state_->opaque) continue;
    for (const std::uint32_t node : state_->pieces[piece]) {
      if (!only_own || state_->infos[node].is_own) chosen.push_back(state_->handles[node]);
    }
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
    info.kind = capture::KindOf(TypeOf(node));
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
