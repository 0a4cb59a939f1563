#include "libprobe/capture/lane/direct_lane.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <utility>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/graph/graph_capture.h"
#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/graph/root_tick.h"
#include "libprobe/capture/graph/staging_layout.h"
#include "libprobe/capture/graph/step_word.h"
#include "libprobe/capture/lane/lane_call.h"
#include "libprobe/capture/memory/buffer_pool.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/serial.h"

namespace cgdebug::capture {
namespace {

// Up to so many bytes a kernel saved is worth more than sums on the tensor cores.
constexpr std::uint64_t kMostAtOnceBytes = 16ull << 20;

DirectSlot Describe(const ProbeSlot& slot, const ring::SegmentWriter& segment,
                    const LaneDevice& device) {
  const layout::SlotRegistration& r = slot.registration;
  std::byte* block = slot.block.data;
  DirectSlot direct = {};
  direct.state = slot.buffers.state;
  direct.gate = device.gate;
  direct.head = reinterpret_cast<layout::SlotHead*>(block + layout::kSlotHeadOffset);
  direct.credit = reinterpret_cast<const layout::SlotCredit*>(block + layout::kSlotCreditOffset);
  direct.headers = reinterpret_cast<layout::EntryHeader*>(block + r.headers_offset);
  direct.payloads = block + r.payload_offset;
  direct.producer = segment.producer();
  direct.consumer = segment.consumer();
  direct.refusal = segment.refusals() + r.order % layout::kRefusals;
  direct.step = StepWord();
  direct.runs = slot.counted == nullptr ? nullptr : slot.buffers.runs;
  direct.periods = layout::PeriodsOf(r);
  direct.capacity = r.capacity;
  direct.payload_stride_bytes = r.payload_stride_bytes;
  direct.order = r.order;
  direct.deadline_ns = std::uint64_t{r.wait_deadline_ms} * 1'000'000;
  if ((r.flags & layout::kSlotComparesOnDevice) != 0) {
    direct.compare = reinterpret_cast<CompareState*>(static_cast<std::byte*>(slot.buffers.staging) +
                                                     slot.staging.compare);
    direct.failure = reinterpret_cast<layout::SlotFailure*>(block + layout::kSlotFailureOffset);
  }
  direct.skips_unchanged = (r.flags & layout::kSlotSkipsUnchanged) != 0;
  direct.compares_first = (r.flags & layout::kCompareFirst) != 0;
  direct.waits = r.policy == static_cast<std::uint8_t>(layout::Policy::kWait);
  direct.clock_offset_ns = device.clock_offset_ns;
  direct.serial_offset_ns = device.serial_offset_ns;
  direct.serial_taker = layout::SerialTakerOf(device.index);
  return direct;
}

// For a slot in the body of a conditional node: who counts the replays, and where all leaves of the
// graph find the serial of a replay.
void FollowRoot(RootGraph* root, LaneCall* call) {
  DirectSlot& direct = call->direct;
  const LeafBranches::Branch* const branch = call->leaves.Find(root->id);
  TickArgs args = {};
  args.shared_serial = branch == nullptr ? nullptr : branch->serial;
  args.gate = direct.gate;
  args.serial_offset_ns = direct.serial_offset_ns;
  args.serial_taker = direct.serial_taker;
  const RootGraph::Tick& tick = EnsureTick(root, call->device.index, call->device.stream, args);
  if (branch == nullptr) call->leaves.Begin(root->id, tick.serial);
  direct.tick = tick.memory;
  direct.shared_serial = tick.serial;
}

// From here on the launches before the leaf can tell that they began. The page has no block in
// shared memory when they are captured.
void TellRows(const LaneCall& call) {
  const RowsHead head = {call.direct.head, call.direct.clock_offset_ns};
  call.device.Write(&call.direct.state->page.rows, &head, sizeof(head));
}

// Where the eager calls of a stream put the parts of their statistics: each leaf has read them
// before the next call writes there.
layout::DeviceStats* EagerParts(const LaneDevice& device, cudaStream_t stream) {
  static auto* memory = new StreamMemory("statistics of eager calls are made");
  const auto most = static_cast<std::uint64_t>(kStatsBlocksPerMultiprocessor) *
                    static_cast<std::uint64_t>(device.multiprocessors) * (kStatsThreads / 32);
  return static_cast<layout::DeviceStats*>(
      memory->Of(device.index, stream, most * sizeof(layout::DeviceStats)));
}

}  // namespace

struct DirectLane::State {
  const LaneDevice device;
  LeafBranches leaves = LeafBranches(device.overlaps);
  PartsHere here = {};
};

DirectLane::DirectLane(int device) : state_(*new State{LaneDevice::SetUp(device)}) {}

DirectLane& DirectLane::On(int device) {
  static auto* lanes = new std::map<int, std::unique_ptr<DirectLane>>;
  std::unique_ptr<DirectLane>& lane = (*lanes)[device];
  if (lane == nullptr) {
    const DeviceGuard guard(device);
    const RelaxedCapture relaxed;
    lane.reset(new DirectLane(device));
  }
  return *lane;
}

bool DirectLane::grids_overlap() const { return state_.device.overlaps; }

void DirectLane::Prepare(ProbeSlot* slot) {
  const layout::SlotRegistration& r = slot->registration;
  const LaneDevice& device = state_.device;
  const auto dtype = static_cast<Dtype>(r.dtype);
  slot->staging =
      StagingLayout::Of(r, StagesParts(r) ? device.GridOfStats(dtype, TensorBytes(r)).parts() : 0);
  const DeviceGuard guard(device.index);
  const RelaxedCapture relaxed;
  slot->buffers =
      BufferPool::Instance().Take(slot->staging.bytes, device.index, Buffers::Kind::kDirect);
}

void DirectLane::Begin(ProbeSlot* slot, void* stream) {
  const LaneDevice& device = state_.device;
  const DeviceGuard guard(device.index);
  const RelaxedCapture relaxed;
  const CaptureInfo info = GetCaptureInfo(static_cast<cudaStream_t>(stream));
  CGD_CUDA(cudaMemsetAsync(slot->buffers.state, 0, sizeof(DirectState), device.stream));
  CGD_CUDA(cudaStreamSynchronize(device.stream));
  // The number of launches of a graph does not tell how often a graph inside it runs.
  const RootGraph* root = slot->root_graph.get();
  if (root != nullptr || slot->registration.graph_id != info.id) slot->counted.reset();
  if (slot->counted == nullptr) {
    return RetainByGraph(root == nullptr ? info.graph : static_cast<cudaGraph_t>(root->graph),
                         slot);
  }
  ring::StoreRelaxed(*slot->buffers.runs, std::uint64_t{0});
  slot->life.HoldByGraph();
}

void DirectLane::HoldWithoutLeaf(ProbeSlot* slot, void* stream) noexcept {
  const std::shared_ptr<CountedGraph> counted = std::exchange(slot->counted, nullptr);
  if (counted == nullptr) return;
  try {
    const DeviceGuard guard(state_.device.index);
    const RelaxedCapture relaxed;
    const CaptureInfo info = GetCaptureInfo(static_cast<cudaStream_t>(stream));
    if (info.status == cudaStreamCaptureStatusActive && info.id == counted->id()) {
      return RetainByGraph(info.graph, slot);
    }
  } catch (const std::exception&) {
    (void)cudaGetLastError();
  }
  counted->Escape();
}

void DirectLane::Capture(ProbeSlot* slot, const ring::SegmentWriter& segment,
                         const TensorRef& tensor, void* stream) {
  const LaneDevice& device = state_.device;
  const DeviceGuard guard(device.index);
  const RelaxedCapture relaxed;
  LaneCall call = {device, state_.leaves, segment, slot, tensor, static_cast<cudaStream_t>(stream)};
  const bool in_body = call.Has(layout::kSlotInBody);
  RootGraph* root = slot->root_graph.get();
  if (in_body && root == nullptr) {
    throw ProbeError(
        ErrorKind::kUnsupported,
        "a probe in the body of a conditional node (torch.cond, while_loop) must know the graph "
        "that contains the node, to number its replays. Under torch.cuda.graph it does, if cgdebug "
        "was imported before the capture began. In C++ keep a cgdebug::ScopedRootGraph while the "
        "body is captured");
  }
  if (!slot->life.held_by_graph()) Begin(slot, stream);
  call.direct = Describe(*slot, segment, device);
  if (in_body) FollowRoot(root, &call);
  if (call.Has(layout::kSlotHoldsOpLog)) TellRows(call);
  try {
    if (call.Has(layout::kSlotIsReference)) CaptureCopy(call);
    if (call.Has(layout::kSlotHoldsStats)) {
      CaptureStats(call, &state_.here);
    } else if (call.Has(layout::kSlotOnDevice)) {
      CaptureRing(call);
    } else {
      CaptureValues(call);
    }
    if (slot->counted != nullptr) slot->counted->AddLeaf(slot->buffers.runs);
  } catch (...) {
    // A kernel on the compute path may be in the graph, and no leaf counts its runs.
    if (std::exchange(slot->counted, nullptr) != nullptr) {
      RetainByGraph(GetCaptureInfo(call.stream).graph, slot);
    }
    throw;
  }
  if (in_body) TellReplays(root, device.index, device.stream, call.direct.head);
}

void DirectLane::LaunchEagerStats(ProbeSlot* slot, const ring::SegmentWriter& segment,
                                  const TensorRef& tensor, std::uint64_t call, std::int64_t step,
                                  void* stream_handle) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const LaneDevice& device = state_.device;
  const DeviceGuard guard(device.index);
  const RelaxedCapture relaxed;
  layout::DeviceStats* const parts = EagerParts(device, stream);
  const layout::SlotRegistration& r = slot->registration;
  if (slot->launches == 0) {
    ring::StoreRelaxed(*slot->buffers.runs, std::uint64_t{0});
    CGD_CUDA(cudaMemsetAsync(slot->buffers.state, 0, sizeof(DirectState), stream));
  }
  DirectSlot direct = Describe(*slot, segment, device);
  direct.runs = slot->buffers.runs;
  direct.shared_serial = &direct.state->shared_serial;
  const std::uint64_t bytes = TensorBytes(r);
  const StatsGrid grid = device.GridOfStats(tensor.dtype, bytes);
  const bool at_once = !grid.on_tensor_cores || bytes <= kMostAtOnceBytes;
  StatsLeafArgs leaf = {};
  leaf.slot = direct;
  leaf.parts = parts;
  leaf.hash = (r.flags & layout::kStatsWithoutHash) == 0;
  leaf.call = call;
  leaf.step_of_call = step;
  const auto* const from = static_cast<const std::byte*>(tensor.data);
  if (at_once) {
    leaf.part_count = static_cast<std::uint32_t>(grid.blocks);
    EagerStatsArgs args = {from, ElementCount(r), parts, leaf};
    Launch(EagerStatsKernel(tensor.dtype), grid.blocks, kStatsThreads, &args, stream,
           device.overlaps);
  } else {
    StatsArgs args = {};
    args.from = from;
    args.count = ElementCount(r);
    args.parts = parts;
    args.state = direct.state;
    leaf.part_count = grid.parts();
    leaf.starts_early = device.overlaps;
    Launch(TensorCoreStatsKernel(), grid.blocks, kStatsThreads, &args, stream, device.overlaps);
    Launch(StatsLeafKernel(), 1, kStatsLeafThreads, &leaf, stream, device.overlaps);
  }
  ++slot->launches;
  if (!std::exchange(slot->launches_pin, true)) slot->life.Pin();
}

}  // namespace cgdebug::capture
