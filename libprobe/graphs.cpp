// The public face of the census of graphs (ring/graph_census.h).
#include <exception>

#include "cgdebug/probe.h"
#include "libprobe/capture/cuda_lane.h"
#include "libprobe/probe_table.h"

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

KnownGraph BeginGraph(std::uint64_t capture_id, const std::string& stack) noexcept {
  try {
    ProbeTable& table = ProbeTable::Instance();
    const ProbeTable::Lock lock = table.Acquire();
    ring::GraphCensusWriter* const census = table.slots.Census();
    if (census == nullptr) return {};
    const std::uint64_t order =
        census->Begin(capture_id, table.graphs.TakeLabel(capture_id), stack, /*counted=*/true);
    return {order, census->counter(order)};
  } catch (const std::exception&) {  // no memory
    return {};
  }
}

void EndGraph(std::uint64_t order, std::optional<std::uint64_t> nodes, bool failed) noexcept {
  try {
    ProbeTable& table = ProbeTable::Instance();
    const ProbeTable::Lock lock = table.Acquire();
    ring::GraphCensusWriter* const census = table.slots.census();
    if (census == nullptr) return;
    const std::uint64_t id = census->IdOf(order);
    census->End(order, nodes, failed, id == 0 ? "" : table.graphs.TakeLabel(id));
  } catch (const std::exception&) {  // no memory: it stays as it was
  }
}

void SetGraphPool(std::uint64_t order, std::uint64_t first, std::uint64_t second) noexcept {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  if (auto* census = table.slots.census()) census->SetPool(order, first, second);
}

void ForgetGraph(std::uint64_t order) noexcept {
  try {
    ProbeTable& table = ProbeTable::Instance();
    const ProbeTable::Lock lock = table.Acquire();
    auto* census = table.slots.census();
    if (census != nullptr && !table.slots.finished()) census->Gone(order);
  } catch (const std::exception&) {  // no memory: it stays as it was
  }
}

GraphCounterWords GraphCounters() noexcept {
  ProbeTable& table = ProbeTable::Instance();
  const ProbeTable::Lock lock = table.Acquire();
  auto* census = table.slots.census();
  if (census == nullptr) return {};
  return {reinterpret_cast<std::uint64_t*>(census->table()),
          layout::kGraphTableBytes / sizeof(std::uint64_t)};
}

}  // namespace cgdebug
