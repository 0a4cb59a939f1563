// Built instead of cuda_lane.cpp if there is no CUDA: only CPU tensors can be probed.
#include "libprobe/apart/apart_graph.h"
#include "libprobe/capture/graph/own_nodes.h"
#include "libprobe/capture/graph/root_graph.h"
#include "libprobe/capture/graph/step_word.h"
#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/lane/direct_lane.h"
#include "libprobe/capture/lane/op_log_lane.h"
#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/capture/pool_parts.h"

namespace cgdebug::capture {
namespace {

[[noreturn]] void Refuse() {
  throw ProbeError(ErrorKind::kUnsupported,
                   "this build of cgdebug has no CUDA support. Install it where torch has CUDA: "
                   "pip install --no-build-isolation .");
}

}  // namespace

StreamCapture QueryCapture(void*) { return {}; }
std::optional<std::uint64_t> CountNodesOfCapture(void*) noexcept { return std::nullopt; }
std::optional<std::uint64_t> CountNodes(void*) noexcept { return std::nullopt; }
Buffers AllocateBuffers(std::uint64_t, int, Buffers::Kind) { Refuse(); }
void FreeBuffers(const Buffers&) noexcept {}
std::uint64_t DeviceBytes() noexcept { return 0; }
PoolParts::~PoolParts() = default;
layout::DeviceStats* PoolParts::Take(std::uint64_t, int, Place*) { Refuse(); }
void TrimBuffers() noexcept {}
void SetFallbackAllocator(const DeviceAllocator&) {}
std::optional<LaneRefusal> DirectLane::Refused(int) { Refuse(); }
std::optional<LaneRefusal> DirectLane::Map(const ring::SegmentWriter&, const ring::Block&, int) {
  Refuse();
}
DirectLane& DirectLane::On(int) { Refuse(); }
void DirectLane::Prepare(ProbeSlot*) { Refuse(); }
void DirectLane::Begin(ProbeSlot*, void*) { Refuse(); }
void DirectLane::HoldWithoutLeaf(ProbeSlot*, void*) noexcept {}
void DirectLane::Capture(ProbeSlot*, const ring::SegmentWriter&, const TensorRef&, void*) {
  Refuse();
}
void DirectLane::LaunchEagerStats(ProbeSlot*, const ring::SegmentWriter&, const TensorRef&,
                                  std::uint64_t, std::int64_t, void*) {
  Refuse();
}
std::vector<std::vector<std::byte>> ReadDeviceRing(const ProbeSlot&,
                                                   const std::vector<std::uint64_t>&) {
  Refuse();
}
bool ServeWindow(ProbeSlot*) { Refuse(); }
DeviceMemory MemoryOf(int) { Refuse(); }
bool AwaitIdle(int, std::chrono::nanoseconds) noexcept { return false; }
std::uint64_t OpLogPageParts() { Refuse(); }
std::uint64_t OpLogLargeParts() { Refuse(); }
Position ComputeRows(layout::DeviceStats*, layout::DeviceStats*, DirectState*,
                     std::span<const OpLogTensor>, std::uint32_t, int, void*, const Position&) {
  Refuse();
}
std::uint64_t ScratchBytesOfRows() { return 0; }
void ComputeRowsNow(void*, void*, std::span<const OpLogTensor>, int, void*) { Refuse(); }
EagerRow LaunchEagerRow(OpLogTensor, int, void*) { Refuse(); }
bool IsThere(const EagerRow&) { return true; }
void GiveBack(const EagerRow&) {}
bool HasFailed(int) noexcept { return false; }
Position PositionOf(void*) { Refuse(); }
void Join(void*, const Position&) { Refuse(); }
void PutBehind(void*, const Position&, const std::vector<void*>&) { Refuse(); }
std::string NameOfNode(void*) { Refuse(); }
std::vector<void*> CaptureNodes::Take(void*) { return {}; }
std::vector<void*> CaptureNodes::TakeRest(void*) { return {}; }
std::vector<OwnNode> OwnNodesOf(void*) { Refuse(); }
void CaptureLeaf(ProbeSlot*, const TensorRef&, void*) { Refuse(); }
void LaunchEager(ProbeSlot*, const TensorRef&, std::uint64_t, std::int64_t, void*) { Refuse(); }
CapturePlace PlaceOf(void*, std::uint64_t capture_id, int) { return {.graph_id = capture_id}; }
void NoteRootCapture(void*) noexcept {}
std::shared_ptr<RootGraph> OpenRoot(void*, void*) { Refuse(); }
void CloseRoot(const std::shared_ptr<RootGraph>&) noexcept {}
void SetStepInStreamOrder(std::int64_t, void*) noexcept {}
std::int64_t StepOnGpu(std::int64_t otherwise) noexcept { return otherwise; }

}  // namespace cgdebug::capture

namespace cgdebug::apart {

struct ApartGraph::State {};
ApartGraph::ApartGraph(void*, bool, const std::unordered_set<const void*>&) { capture::Refuse(); }
ApartGraph::~ApartGraph() = default;
const std::vector<NodeInfo>& ApartGraph::nodes() const { capture::Refuse(); }
const Dag& ApartGraph::dag() const { capture::Refuse(); }
const std::vector<Dag::Nodes>& ApartGraph::pieces() const { capture::Refuse(); }
std::optional<std::size_t> ApartGraph::opaque() const { capture::Refuse(); }
void ApartGraph::Enable(void*, bool, bool) { capture::Refuse(); }
void ApartGraph::Launch(std::size_t, void*, bool) { capture::Refuse(); }
void ApartGraph::Prepare(bool) { capture::Refuse(); }
void ApartGraph::PutInto(void*) const { capture::Refuse(); }
CaptureOrder OrderOf(void*, const std::vector<NodeAccess>&) { capture::Refuse(); }
std::vector<NodeInfo> KindsOf(void*) { capture::Refuse(); }
void RemoveNodes(void*) { capture::Refuse(); }
bool AwaitStream(void*, std::chrono::nanoseconds) { return true; }

}  // namespace cgdebug::apart
