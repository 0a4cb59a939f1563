// own_nodes.h: which nodes of a graph are kernels of ours, and which slots they serve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cgdebug::capture {

struct DirectState;

struct OwnNode {
  void* node = nullptr;   // cudaGraphNode_t
  std::size_t place = 0;  // among the nodes of the graph, as cudaGraphGetNodes() has them
  std::string kernel;     // "Stage", "Leaf"
  const DirectState* state = nullptr;  // of its slot, which may be gone
  std::uint32_t launch = 0;            // as layout::OpLogRow::launch; 0: not of a batch of rows
};

// Those of `graph` (cudaGraph_t), without those of graphs inside it. Takes time in proportion to
// the size of the graph. Fails: throws ProbeError.
std::vector<OwnNode> OwnNodesOf(void* graph);

}  // namespace cgdebug::capture
