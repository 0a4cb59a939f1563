// capture_nodes.h: the nodes that a graph got while it is captured, and where its streams stand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace cgdebug::capture {

// What the next node of a stream would follow: nodes (cudaGraphNode_t) and the edges to them
// (cudaGraphEdgeData).
struct Position {
  std::vector<void*> nodes;
  std::vector<std::uint64_t> edges;
  bool operator==(const Position&) const = default;
};

// All of these fail with ProbeError.

// Requires: `stream` is capturing.
Position PositionOf(void* stream);
void SetPosition(void* stream, const Position& position);
// The stream's next node follows the nodes of `position`, too.
void Join(void* stream, const Position& position);
// Makes `later`, nodes of the graph that `stream` captures, follow the nodes of `position`.
void PutBehind(void* stream, const Position& position, const std::vector<void*>& later);

// What a node runs: "flash_fwd_kernel", "memset"; empty for a node of ours.
std::string NameOfNode(void* node);

// The name in a kernel's symbol: without namespaces, template arguments and parameters, cut to
// kMostNodeName bytes, with '_' for spaces, commas and stars.
std::string ShortKernelName(const std::string& symbol);
inline constexpr std::size_t kMostNodeName = 64;
bool IsOwnKernel(const std::string& symbol);

// Thread: one at a time.
class CaptureNodes {
 public:
  explicit CaptureNodes(std::uint64_t capture_id) : capture_id_(capture_id) {}
  std::uint64_t capture_id() const { return capture_id_; }

  // The nodes that the stream's next node would come after and that no call has returned so far:
  // kernels, copies and whatever else may write memory. None if the stream belongs to another
  // capture. Takes time in proportion to their number.
  std::vector<void*> Take(void* stream);
  // Those of the whole graph, in any order. Takes time in proportion to its size.
  std::vector<void*> TakeRest(void* stream);

 private:
  const std::uint64_t capture_id_;
  std::unordered_set<void*> known_;  // with each node all that come before it
};

}  // namespace cgdebug::capture
