// root_graph.h: the graph that contains a conditional node, for probes in the node's bodies.
//
// A body runs any number of times in one replay, so its slots cannot count replays by themselves. A
// kernel at the head of the root graph does it for them (RootTick). CUDA does not say which graph a
// body belongs to; whoever captures says it, before the body is captured.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace cgdebug::capture {

struct RootTick;

struct RootGraph {
  struct Tick {
    RootTick* memory = nullptr;       // of the device
    std::uint64_t* serial = nullptr;  // the word that holds the serial of the replay
    void* node = nullptr;             // a cudaGraphNode_t
    std::uint64_t head_count = 0;
  };

  void* graph = nullptr;  // a cudaGraph_t
  // The number of its capture. Of a graph that no stream captures: that of the first body with a
  // probe.
  std::uint64_t id = 0;
  std::map<int, Tick> ticks = {};  // by device
};

// Where a capture takes place.
struct CapturePlace {
  std::uint64_t graph_id = 0;  // the number of the root graph's capture, also in a body
  bool in_body = false;
  std::shared_ptr<RootGraph> root = nullptr;  // in a body: null if nobody said which it is
};

// Thread: one at a time (the probe table's lock). Fails: throws ProbeError.
CapturePlace PlaceOf(void* stream, std::uint64_t capture_id, int device);

// From here on `stream` captures a graph that may contain conditional nodes, until its capture
// ends. Requires: the stream lives as long as the process. Thread: any.
void NoteRootCapture(void* stream) noexcept;
// From here on until CloseRoot(), `graph` may contain conditional nodes. `stream` is the one that
// captures it, or null. Fails: throws ProbeError. Thread: any.
std::shared_ptr<RootGraph> OpenRoot(void* graph, void* stream);
void CloseRoot(const std::shared_ptr<RootGraph>& root) noexcept;

}  // namespace cgdebug::capture
