// apart_graph.h: a captured graph taken apart: launched piece by piece, on the same addresses.
//
// Each node of a graph has its kernel, arguments and launch attributes, so it can be launched
// alone. A piece is a node that every path passes, or all that lies between two such nodes (dag.h):
// a kernel that waits for its parallel neighbour is launched together with it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "libprobe/apart/dag.h"
#include "libprobe/apart/node_pointers.h"

namespace cgdebug::apart {

struct NodeInfo {
  const void* handle = nullptr;  // cudaGraphNode_t of the graph that was given
  const char* kind = "";         // "kernel", "memcpy", "memset", "conditional_node", ...
  std::string name;              // "flash_fwd_kernel"; the kind if it is no kernel
  std::array<std::uint32_t, 3> grid = {};
  std::array<std::uint32_t, 3> block = {};
  bool may_write = false;  // memory
  bool is_own = false;     // of cgdebug
};

// Thread: one at a time. Fails: all of it throws ProbeError.
class ApartGraph {
 public:
  // Copies the nodes of `graph` (cudaGraph_t), which may then be destroyed. Without `copies`, and
  // if there is an opaque() piece, it must stay as it is until the last call of Pointers(),
  // Launch(), Prepare() or PutInto(): that takes less memory. Takes time in proportion to the
  // number of nodes. `plain`: nodes, cudaGraphNode_t, of kernels that surely change nothing of the
  // graph itself, such as the condition of a node, and take nothing that torch prepares for each
  // replay.
  explicit ApartGraph(void* graph, bool copies = true,
                      const std::unordered_set<const void*>& plain = {});
  ~ApartGraph();
  ApartGraph(const ApartGraph&) = delete;
  ApartGraph& operator=(const ApartGraph&) = delete;

  const std::vector<NodeInfo>& nodes() const;
  const Dag& dag() const;
  // The nodes by their places in nodes().
  const std::vector<Dag::Nodes>& pieces() const;
  // The piece that runs only when the graph itself is launched, behind Enable(false): from the
  // first kernel that is not plain, or the first of these nodes, to the last one of them:
  // conditional nodes, memory that the graph allocates or frees, and what kernels update; of a
  // graph that stays also host functions and child graphs, which CUDA cannot leave out of a launch.
  std::optional<std::size_t> opaque() const;
  // What the node in this place of nodes() is given; see PointersOf.
  std::optional<std::vector<MemoryPointer>> Pointers(std::size_t node) const;

  // Launches one piece on `stream`: a kernel as it is, and anything else as a graph, which is made
  // at the first launch, and kept. Without `with_own` our own nodes do nothing, so that the replay
  // is not counted.
  void Launch(std::size_t piece, void* stream, bool with_own = true);

  // Makes the graphs that Launch() launches, so that no launch fails in the middle of a replay.
  void Prepare(bool with_own);

  // Whether the nodes that are not in the opaque piece do something when `exec` (cudaGraphExec_t),
  // which was made of the graph, is launched from now on: ours, or all. What is off still keeps the
  // others in order. Requires: the graph was not copied. Fails: throws ProbeError, and leaves all
  // on.
  void Enable(void* exec, bool only_own, bool is_on);

  // Makes `graph` what was copied: one node that has all of it.
  // Requires: `graph` has no nodes.
  void PutInto(void* graph) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a node of a graph under capture does to bytes.
struct NodeAccess {
  const void* node = nullptr;  // cudaGraphNode_t
  std::uint64_t begin = 0;     // address
  std::uint64_t end = 0;       // behind the last byte
  bool writes = false;
};

// The order of what `stream` has captured so far, without our own nodes.
struct CaptureOrder {
  std::size_t nodes = 0;
  // cudaGraphNode_t: those that some path leaves out, and that may touch memory
  std::vector<const void*> unordered;
  std::vector<Conflict> conflicts;  // by places among the accesses
};
// Accesses of other nodes than those of the graph are left out.
// Requires: `stream` is capturing. Fails: throws ProbeError.
CaptureOrder OrderOf(void* stream, const std::vector<NodeAccess>& accesses);

// Of each node of `graph`: handle, kind and whether it is ours; the rest says nothing. Much faster
// than to take the graph apart. Fails: throws ProbeError.
std::vector<NodeInfo> KindsOf(void* graph);

// Destroys the nodes of `graph`, so that what is instantiated of it does nothing. Fails:
// ProbeError.
void RemoveNodes(void* graph);

// Waits until `stream` has nothing to do, at most `most`; false if it still has.
// Fails: throws ProbeError with CUDA's error if a kernel failed.
bool AwaitStream(void* stream, std::chrono::nanoseconds most);

}  // namespace cgdebug::apart
