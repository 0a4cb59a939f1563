// The public functions for graphs that are announced: their census (ring/graph_census.h) and
// their end (capture/graph/counted_graph.h).
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/counted_graph.h"
#include "libprobe/capture/graph/own_nodes.h"
#include "libprobe/capture/graph/root_graph.h"
#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/probe_table.h"
#include "libprobe/ring/op_log_table.h"
#include "libprobe/ring/shared_copy.h"

namespace cgdebug {

std::uint64_t CaptureIdOf(void* stream) noexcept {
  try {
    const capture::StreamCapture capture = capture::QueryCapture(stream);
    return capture.capturing ? capture.id : 0;
  } catch (const ProbeError&) {
    return 0;
  }
}

std::optional<std::uint64_t> CountNodesOfCapture(void* stream) noexcept {
  return capture::CountNodesOfCapture(stream);
}
std::optional<std::uint64_t> CountNodes(void* graph) noexcept { return capture::CountNodes(graph); }

namespace {

// "row fwd/mm_0", "rows fwd/mm_0 to fwd/add_3"
std::string RowsText(const capture::ProbeSlot& slot, std::uint32_t launch) {
  const layout::SlotRegistration& r = slot.registration;
  std::string reason;
  const auto rows = slot.expected == nullptr || slot.expected->data == nullptr
                        ? std::nullopt
                        : ring::DecodeOpLog({slot.expected->data, r.table_bytes},
                                            static_cast<std::size_t>(r.shape[0]), &reason);
  if (!rows) return "rows of an op log";
  const std::string* first = nullptr;
  const std::string* last = nullptr;
  for (const ring::OpLogRow& row : *rows) {
    if (launch != 0 && row.launch != launch) continue;
    if (first == nullptr) first = &row.name;
    last = &row.name;
  }
  if (first == nullptr) return "rows of an op log";
  return first == last ? "row " + *first : "rows " + *first + " to " + *last;
}

std::vector<NamedNode> Name(const std::vector<capture::OwnNode>& nodes) {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  std::vector<NamedNode> named;
  for (const capture::OwnNode& own : nodes) {
    const capture::ProbeSlot* const slot = FindState(table.slots.slots(), own.state);
    std::string name = "cgdebug";
    if (slot != nullptr && (slot->registration.flags & layout::kSlotHoldsOpLog) != 0) {
      name = RowsText(*slot, own.launch);
    } else if (slot != nullptr) {
      name = std::string("probe ") + slot->registration.name;
    } else if (own.launch != 0) {
      name = "rows of an op log";  // that is not complete yet, or closed
    }
    named.push_back({own.node, own.place, name + " (" + own.kernel + ")"});
  }
  return named;
}

}  // namespace

std::vector<NamedNode> NamedNodesOf(void* graph) { return Name(capture::OwnNodesOf(graph)); }

void NoteRootCapture(void* stream) noexcept { capture::NoteRootCapture(stream); }

ScopedRootGraph::ScopedRootGraph(void* graph, void* stream)
    : root_(capture::OpenRoot(graph, stream)) {}
ScopedRootGraph::~ScopedRootGraph() {
  capture::CloseRoot(std::static_pointer_cast<capture::RootGraph>(root_));
}

std::shared_ptr<CountedGraph> BeginGraph(std::uint64_t capture_id,
                                         const std::string& stack) noexcept {
  try {
    ProbeTable& table = ProbeTable::Instance();
    const ProbeTable::Lock lock = table.Acquire();
    std::uint64_t order = 0;
    std::uint64_t* shown = nullptr;
    if (ring::GraphCensusWriter* const census = table.segment.Census()) {
      order =
          census->Begin(capture_id, table.graphs.TakeLabel(capture_id), stack, /*counted=*/true);
      auto* const words = reinterpret_cast<std::uint64_t*>(census->table());
      shown = words + census->counter(order);
      table.unlisted_replays.store(words);
    }
    auto graph = std::make_shared<CountedGraph>(&table, capture_id, order, shown);
    table.graphs.Count(graph);
    return graph;
  } catch (const std::exception&) {  // no memory
    return nullptr;
  }
}

void EndGraph(CountedGraph& graph, std::optional<std::uint64_t> nodes, bool failed) noexcept {
  try {
    ProbeTable& table = ProbeTable::Instance();
    const ProbeTable::Lock lock = table.Acquire();
    if (graph.table() != &table) return;
    graph.CaptureEnded();
    table.graphs.Uncount(graph.id());
    if (ring::GraphCensusWriter* const census = table.segment.census()) {
      census->End(graph.order(), nodes, failed, table.graphs.TakeLabel(graph.id()));
    }
  } catch (const std::exception&) {  // no memory: it stays as it was
  }
}

void SetGraphPool(CountedGraph& graph, std::uint64_t first, std::uint64_t second) noexcept {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  if (graph.table() != &table || (first == 0 && second == 0)) return;
  try {
    table.graphs.SetPool(&graph, {first, second});
  } catch (const std::exception&) {  // no memory: it takes more of the device's
  }
  auto* const census = table.segment.census();
  if (census != nullptr) census->SetPool(graph.order(), first, second);
}

void CountReplay(CountedGraph* graph) noexcept {
  if (graph != nullptr) return graph->CountLaunch();
  std::uint64_t* const unlisted = ProbeTable::Instance().unlisted_replays.load();
  if (unlisted != nullptr) ring::Add(*unlisted, std::uint64_t{1});
}

void TakeBackReplay(CountedGraph* graph) noexcept {
  if (graph != nullptr) return graph->TakeBackLaunch();
  std::uint64_t* const unlisted = ProbeTable::Instance().unlisted_replays.load();
  if (unlisted != nullptr) ring::Add(*unlisted, ~std::uint64_t{0});
}

std::uint64_t CountedReplays(const CountedGraph& graph) noexcept { return graph.launches(); }
bool IsForgotten(const CountedGraph& graph) noexcept { return graph.owner_is_gone(); }
void ShareGraph(CountedGraph& graph) noexcept { graph.Escape(); }

void ForgetGraph(const std::shared_ptr<CountedGraph>& graph) noexcept {
  try {
    ProbeTable& table = ProbeTable::Instance();
    const ProbeTable::Lock lock = table.Acquire();
    if (graph->table() != &table || graph->owner_is_gone()) return;
    table.graphs.Uncount(graph->id());
    graph->OwnerIsGone();
    if (graph->has_leaves()) table.slots.AwaitEnd(graph);
    auto* const census = table.segment.census();
    if (census != nullptr && !table.slots.finished()) census->Gone(graph->order());
  } catch (const std::exception&) {  // no memory: what it holds stays
  }
}

}  // namespace cgdebug
