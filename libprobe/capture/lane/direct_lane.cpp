#include "libprobe/capture/lane/direct_lane.h"

#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/graph/graph_capture.h"
#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/graph/root_tick.h"
#include "libprobe/capture/graph/step_word.h"
#include "libprobe/capture/kernels/direct_kernels.h"
#include "libprobe/capture/lane/shared_parts.h"
#include "libprobe/capture/memory/buffer_pool.h"
#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/capture/pool_parts.h"
#include "libprobe/ring/serial.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/realtime.h"
#include "proto/layout/serial.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::capture {
namespace {

using layout::LaneReason;

constexpr std::size_t kOpenCaptures = 32;
constexpr std::uint64_t kMostStageBlocks = 1024;
constexpr std::uint64_t kFewStatsBlocksBytes = 8ull << 20;
// From here on bfloat16 is added on the tensor cores, which takes longer to begin and to end.
constexpr std::uint64_t kTensorCoreBytes = 2ull << 20;
// Up to so many bytes a kernel saved is worth more than sums on the tensor cores.
constexpr std::uint64_t kMostAtOnceBytes = 16ull << 20;
constexpr int kClockReadings = 5;

// Up to so many bytes of a ring on the device the leaf computes statistics that the live control
// asks for. The kernel that stages larger tensors does it; it copies a little slower than the
// other.
constexpr std::uint64_t kLeafStatsBytes = 1ull << 20;
// Where the block of a leaf puts its part.
constexpr std::uint64_t kLeafPartsBytes = sizeof(layout::DeviceStats);

// Up to so many bytes of a stable tensor the leaf computes the statistics, where a kernel in front
// of it would take longer to begin than to read.
constexpr std::uint64_t kStableLeafBytes = 256ull << 10;
constexpr std::uint64_t kStableLeafBytesPerBlock = kStableLeafBytes / kMostLeafBlocks;

int Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  CGD_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// What the lane needs once per device. Never freed: kernels use it until the process ends.
struct Device {
  int index = 0;
  cudaStream_t stream = nullptr;  // our own, for set-up; never captured
  DirectGate* gate = nullptr;
  std::int64_t clock_offset_ns = 0;
  std::int64_t serial_offset_ns = 0;
  int multiprocessors = 0;
  bool overlaps = false;               // a grid may start before the one it follows ends
  bool adds_bfloat16 = false;          // on the tensor cores
  DirectState* never_skips = nullptr;  // zeros
};

// The offset from the GPU's clock to the clock of serials: the middle of the fastest of several
// readings. The pinned word is not freed: that would wait for the job's work.
std::int64_t MeasureSerialOffset(cudaStream_t stream) {
  std::uint64_t* reading = nullptr;
  CGD_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&reading), sizeof(*reading),
                         cudaHostAllocPortable | cudaHostAllocMapped));
  std::int64_t best_ns = INT64_MAX;
  std::int64_t offset_ns = 0;
  for (int i = 0; i < kClockReadings; ++i) {
    const std::int64_t before = ring::SerialClockNs();
    Launch(ClockKernel(), 1, 1, &reading, stream);
    CGD_CUDA(cudaStreamSynchronize(stream));
    const std::int64_t after = ring::SerialClockNs();
    if (after - before >= best_ns) continue;
    best_ns = after - before;
    offset_ns = before + best_ns / 2 - static_cast<std::int64_t>(*reading);
  }
  return offset_ns;
}

// Requires: `index` is the current device.
Device SetUpDevice(int index) {
  Device device;
  device.index = index;
  CGD_CUDA(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
  CGD_CUDA(cudaMalloc(reinterpret_cast<void**>(&device.gate), sizeof(*device.gate)));
  CGD_CUDA(cudaMemsetAsync(device.gate, 0, sizeof(*device.gate), device.stream));
  CGD_CUDA(cudaMalloc(reinterpret_cast<void**>(&device.never_skips), sizeof(DirectState)));
  CGD_CUDA(cudaMemsetAsync(device.never_skips, 0, sizeof(DirectState), device.stream));
  device.serial_offset_ns = MeasureSerialOffset(device.stream);
  device.clock_offset_ns = device.serial_offset_ns + layout::RealtimeNs() - ring::SerialClockNs();
  device.multiprocessors = Attribute(cudaDevAttrMultiProcessorCount, index);
  const int capability = Attribute(cudaDevAttrComputeCapabilityMajor, index);
  // Kernels that were compiled for earlier devices do not wait (grid_overlap.cuh).
  cudaFuncAttributes compiled = {};
  CGD_CUDA(cudaFuncGetAttributes(&compiled, ClockKernel()));
  device.overlaps = capability >= 9 && compiled.ptxVersion >= 90;
  // How tensor cores round is known of Hopper alone (tensor_core_sums.cuh).
  device.adds_bfloat16 = capability == 9 && compiled.ptxVersion >= 90;
  return device;
}

Device& GetDevice(int index) {
  static auto* devices = new std::map<int, Device>;
  const auto found = devices->find(index);
  if (found != devices->end()) return found->second;
  return devices->emplace(index, SetUpDevice(index)).first->second;
}

std::optional<LaneRefusal> FindRefusal(int device) {
  if (ClockKernel() == nullptr) {
    return LaneRefusal{
        LaneReason::kNotBuilt,
        "this cgdebug was built without a CUDA compiler. Put nvcc on PATH (pip install "
        "nvidia-cuda-nvcc, or the CUDA Toolkit) and install it again"};
  }
  if (Attribute(cudaDevAttrCanMapHostMemory, device) == 0 ||
      Attribute(cudaDevAttrHostRegisterSupported, device) == 0 ||
      Attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, device) == 0) {
    return LaneRefusal{LaneReason::kNoMapping,
                       "device " + std::to_string(device) + " cannot map memory of the host"};
  }
  cudaFuncAttributes attributes = {};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, ClockKernel());
  if (status == cudaSuccess) return std::nullopt;
  (void)cudaGetLastError();
  return LaneRefusal{LaneReason::kNotBuilt, std::string("this cgdebug has no kernels for device ") +
                                                std::to_string(device) + " (" +
                                                cudaGetErrorName(status) + ")"};
}

// Any other failure is the job's, for instance an earlier kernel's, and is passed on.
bool SaysThatMemoryCannotBeLocked(cudaError_t status) {
  return status == cudaErrorMemoryAllocation || status == cudaErrorOperatingSystem ||
         status == cudaErrorNotSupported || status == cudaErrorNotPermitted ||
         status == cudaErrorInvalidValue;
}

std::string LockedMemoryAdvice() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return "Raise the limit of locked memory, which is " + std::to_string(limit.rlim_cur >> 10) +
           " KiB: ulimit -l unlimited";
  }
  return "Locked memory is not limited here, so the driver or the container forbids it. Type: "
         "cgdebug-cli doctor";
}

// Why shared memory cannot be mapped, once that is known.
std::optional<LaneRefusal>& Mapping() {
  static std::optional<LaneRefusal> refused;
  return refused;
}

// The last leaf of each capture under way, per device: the next leaf follows it.
struct LastLeaf {
  unsigned long long capture_id;
  int device;
  cudaGraphNode_t node;
  std::uint64_t* serial;  // in the state of the first leaf, shared by all
  std::uint64_t branch;   // a number of its own, also if it begins anew in the same capture
};
std::deque<LastLeaf>& LastLeaves() {
  static auto* leaves = new std::deque<LastLeaf>;
  return *leaves;
}

LastLeaf* FindLastLeaf(unsigned long long capture_id, int device) {
  std::deque<LastLeaf>& leaves = LastLeaves();
  const auto last = std::find_if(leaves.begin(), leaves.end(), [&](const LastLeaf& leaf) {
    return leaf.capture_id == capture_id && leaf.device == device;
  });
  return last == leaves.end() ? nullptr : &*last;
}

void Remember(LastLeaf leaf) {
  static std::uint64_t branches = 0;
  leaf.branch = ++branches;
  LastLeaves().push_back(leaf);
  if (LastLeaves().size() > kOpenCaptures) LastLeaves().pop_front();
}

cudaKernelNodeParams NodeParams(const void* kernel, int blocks, int threads, void** arguments) {
  cudaKernelNodeParams params = {};
  params.func = const_cast<void*>(kernel);
  params.gridDim = dim3(static_cast<unsigned>(blocks));
  params.blockDim = dim3(static_cast<unsigned>(threads));
  params.kernelParams = arguments;
  return params;
}

// A kernel on the branch of the leaves whose results the next leaf, which AddLeaf() puts behind it,
// reads.
template <typename Args>
cudaGraphNode_t AddInFrontOfLeaf(const CaptureInfo& info, const Device& device, const void* kernel,
                                 int blocks, int threads, Args args) {
  const LastLeaf* last = FindLastLeaf(info.id, device.index);
  void* list[] = {&args};
  return AddKernelBehind(info, last == nullptr ? nullptr : last->node,
                         device.overlaps ? Start::kBesideLast : Start::kBehindAll,
                         NodeParams(kernel, blocks, threads, list));
}

// `front`: as AddInFrontOfLeaf() returned it, or null. `start`: if there is none and grids overlap.
template <typename Args>
void AddLeaf(const CaptureInfo& info, const Device& device, const void* kernel, int blocks,
             int threads, Args args, cudaGraphNode_t front = nullptr,
             Start start = Start::kBesideLast) {
  LastLeaf* last = FindLastLeaf(info.id, device.index);
  if (last != nullptr) {
    args.slot.shared_serial = last->serial;
  } else if (args.slot.shared_serial == nullptr) {
    args.slot.shared_serial = &args.slot.state->shared_serial;
  }
  void* list[] = {&args};
  const cudaGraphNode_t before = front != nullptr ? front : last == nullptr ? nullptr : last->node;
  if (!device.overlaps || front != nullptr) start = Start::kBehindAll;
  const cudaGraphNode_t node =
      AddKernelBehind(info, before, start, NodeParams(kernel, blocks, threads, list));
  if (last != nullptr) {
    last->node = node;
  } else {
    Remember({info.id, device.index, node, args.slot.shared_serial, 0});
  }
}

bool HoldsStats(const layout::SlotRegistration& registration) {
  return (registration.flags & layout::kSlotHoldsStats) != 0;
}

std::uint64_t ElementCount(const layout::SlotRegistration& registration) {
  std::uint64_t count = 1;
  for (int i = 0; i < registration.dims; ++i) count *= registration.shape[i];
  return count;
}

// Counts the bytes of the tensor, also where only its statistics leave the device.
std::uint64_t TensorBytes(const layout::SlotRegistration& registration) {
  return ElementCount(registration) *
         layout::DtypeBytes(static_cast<layout::Dtype>(registration.dtype));
}

int Blocks(std::uint64_t items, std::uint64_t items_per_block, std::uint64_t most) {
  const std::uint64_t wanted = (items + items_per_block - 1) / items_per_block;
  return static_cast<int>(std::clamp<std::uint64_t>(wanted, 1, most));
}

// How a kernel of kStatsThreads computes the statistics of a tensor.
struct StatsGrid {
  int blocks;
  bool on_tensor_cores;
  std::uint32_t parts() const {
    return static_cast<std::uint32_t>(on_tensor_cores ? blocks : blocks * kStatsThreads / 32);
  }
};

// Adding up warps takes as long as reading some vectors, so small tensors use fewer of them.
StatsGrid GridOfStats(layout::Dtype dtype, std::uint64_t bytes, const Device& device) {
  const auto most = [&device](int per_multiprocessor) {
    return static_cast<std::uint64_t>(per_multiprocessor) *
           static_cast<std::uint64_t>(device.multiprocessors);
  };
  StatsGrid grid = {};
  grid.on_tensor_cores =
      device.adds_bfloat16 && dtype == layout::Dtype::kBfloat16 && bytes >= kTensorCoreBytes;
  if (grid.on_tensor_cores) {
    // Small enough for each warp to read one group.
    const bool is_small = bytes <= most(1) * kStatsThreads * kTensorCoreVectors * 16;
    grid.blocks = static_cast<int>(most(is_small ? 1 : kTensorCoreBlocksPerMultiprocessor));
  } else {
    const int few = kStatsBlocksPerMultiprocessor / 2;
    grid.blocks = Blocks(bytes, 16 * kStatsThreads,
                         most(bytes <= kFewStatsBlocksBytes ? few : kStatsBlocksPerMultiprocessor));
  }
  return grid;
}

// Whether the leaf that adds up these parts starts before the kernel that makes them ends, and
// waits for it itself. The compute path then does not wait until the leaf has been started. But
// such leaves run one after another, each for as long as it takes to add up its parts, so that many
// parts would hold up the graph's end.
bool StartsEarly(const StatsGrid& grid) { return grid.on_tensor_cores; }

// The offset in the staging memory at which the parts of such statistics lie.
std::uint64_t PartsOffset(const layout::SlotRegistration& registration) {
  if ((registration.flags & layout::kSlotOnDevice) != 0) return registration.device_bytes;
  return layout::AlignUp(registration.payload_bytes, 256);
}

// Whether the kernel that stages the values of a ring on the device also computes parts of their
// statistics, in replays that want them. The leaf has one block, which takes long to read a large
// tensor.
bool StagesParts(const layout::SlotRegistration& registration) {
  return (registration.flags & layout::kSlotOnDevice) != 0 &&
         (layout::MakesStatistics(registration) || registration.payload_bytes > kLeafStatsBytes);
}
bool CanStageParts(const TensorRef& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && tensor.element_stride == 1;
}

// Where the expected tensor lies in the staging memory of a slot that compares on the device.
std::uint64_t ExpectedOffset(const layout::SlotRegistration& registration) {
  return layout::AlignUp(PartsOffset(registration) + kLeafPartsBytes, 256);
}

int CompareBlocks(std::uint64_t bytes) {
  return Blocks(bytes, std::uint64_t{16} * kCompareThreads, kMostCompareBlocks);
}
// Behind the expected tensor.
std::uint64_t CompareStateOffset(const layout::SlotRegistration& registration) {
  return layout::AlignUp(ExpectedOffset(registration) + registration.payload_bytes, 256);
}
std::uint64_t CompareStateBytes(const layout::SlotRegistration& registration) {
  return offsetof(CompareState, findings) +
         static_cast<std::uint64_t>(CompareBlocks(registration.payload_bytes)) *
             sizeof(CompareFinding);
}
CompareState* CompareStateOf(const ProbeSlot& slot) {
  return reinterpret_cast<CompareState*>(static_cast<std::byte*>(slot.buffers.staging) +
                                         CompareStateOffset(slot.registration));
}

DirectSlot Describe(const ProbeSlot& slot, const ring::SegmentWriter& segment,
                    const Device& device) {
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
    direct.compare = CompareStateOf(slot);
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
void FollowRoot(RootGraph* root, const Device& device, DirectSlot* direct) {
  const LastLeaf* last = FindLastLeaf(root->id, device.index);
  TickArgs args = {};
  args.shared_serial = last == nullptr ? nullptr : last->serial;
  args.gate = direct->gate;
  args.serial_offset_ns = direct->serial_offset_ns;
  args.serial_taker = direct->serial_taker;
  const RootGraph::Tick& tick = EnsureTick(root, device.index, device.stream, args);
  if (last == nullptr) Remember({root->id, device.index, nullptr, tick.serial, 0});
  direct->tick = tick.memory;
  direct->shared_serial = tick.serial;
}

// The most bytes, up to 16, of which both the address and the size are a multiple.
int UnitOf(const std::byte* from, std::uint64_t bytes) {
  const std::uint64_t alignment = reinterpret_cast<std::uintptr_t>(from) | bytes;
  return 1 << std::min(std::countr_zero(alignment | 16), 4);
}

// Enough to read a tensor much faster than the link takes it, on half of the multiprocessors.
int HashBlocks(std::uint64_t bytes, const Device& device) {
  return Blocks(bytes, std::uint64_t{16} * 4 * kHashThreads,
                static_cast<std::uint64_t>(std::max(1, device.multiprocessors / 2)));
}

// One unit per thread is fastest up to some MiB. Beyond, starting blocks costs more than loops.
int StageBlocks(std::uint64_t bytes, int unit) {
  return Blocks(bytes, static_cast<std::uint64_t>(unit) * kStageThreads, kMostStageBlocks);
}

// How many bytes a thread that stages `tensor` copies at a time: one element if they lie apart.
int StageUnit(const TensorRef& tensor, std::uint64_t bytes) {
  return tensor.element_stride == 1 ? UnitOf(static_cast<const std::byte*>(tensor.data), bytes)
                                    : static_cast<int>(layout::DtypeBytes(tensor.dtype));
}

// Stages `tensor` with StageKernel, or with GatherKernel if its elements do not lie side by side.
void LaunchStage(const TensorRef& tensor, StageArgs args, const Device& device,
                 cudaStream_t stream) {
  const int unit = StageUnit(tensor, args.bytes);
  args.from_stride = tensor.element_stride;
  Launch(tensor.element_stride == 1 ? StageKernel(unit) : GatherKernel(unit),
         StageBlocks(args.bytes, unit), kStageThreads, &args, stream, device.overlaps);
}

// Writes what kernels of the graph under capture read in device memory.
template <typename T>
void Tell(T* to, T value, const Device& device) {
  CGD_CUDA(cudaMemcpyAsync(to, &value, sizeof(value), cudaMemcpyHostToDevice, device.stream));
  CGD_CUDA(cudaStreamSynchronize(device.stream));
}

// From here on the launches before the leaf can tell that they began. The page has no block in
// shared memory when they are captured.
void TellRows(const DirectSlot& direct, const Device& device) {
  Tell(&direct.state->page.rows, RowsHead{direct.head, direct.clock_offset_ns}, device);
}

// How many bytes the parts of such statistics take. A leaf that computes them itself leaves fewer.
std::uint64_t PartsBytes(const layout::SlotRegistration& registration, int device) {
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  const StatsGrid grid = GridOfStats(static_cast<layout::Dtype>(registration.dtype),
                                     TensorBytes(registration), GetDevice(device));
  return grid.parts() * sizeof(layout::DeviceStats);
}

// What the lane needs for the slot itself.
std::uint64_t OwnStagingBytes(const layout::SlotRegistration& registration, int device) {
  if (HoldsStats(registration)) return 0;  // ProbeSlot::TakeParts()
  if ((registration.flags & layout::kSlotComparesOnDevice) != 0) {
    return CompareStateOffset(registration) + CompareStateBytes(registration);
  }
  return PartsOffset(registration) +
         (StagesParts(registration) ? PartsBytes(registration, device) : kLeafPartsBytes);
}

// Where the tensor of a replay is whole until the graph's next one, for probes that are compared
// with it: behind what the slot's lane needs for itself.
std::uint64_t StagedOffset(const layout::SlotRegistration& registration, int device) {
  return layout::AlignUp(OwnStagingBytes(registration, device), 256);
}

// A copy of its own: the one that the lane sends is left out of replays that nobody wants.
void CaptureStaged(ProbeSlot* slot, const Device& device, const TensorRef& tensor,
                   cudaStream_t stream) {
  StageArgs args = {};
  args.from = static_cast<const std::byte*>(tensor.data);
  args.to = static_cast<std::byte*>(slot->buffers.staging) +
            StagedOffset(slot->registration, device.index);
  args.bytes = TensorBytes(slot->registration);
  args.state = device.never_skips;
  LaunchStage(tensor, args, device, stream);
  slot->staged = args.to;
  slot->staged_on = stream;
  slot->staged_by = PositionOf(stream);
}

// `node` runs a kernel of statistics, and the stream's next node will be another one.
void SetFollowed(void* node) {
  auto* const graph_node = static_cast<cudaGraphNode_t>(node);
  cudaKernelNodeParams params = {};
  CGD_CUDA(cudaGraphKernelNodeGetParams(graph_node, &params));
  StatsArgs args = *static_cast<const StatsArgs*>(params.kernelParams[0]);
  args.followed = true;
  void* arguments[] = {&args};
  params.kernelParams = arguments;
  CGD_CUDA(cudaGraphKernelNodeSetParams(graph_node, &params));
}

PartsHere& Here() {
  static auto* parts = new PartsHere;
  return *parts;
}

// Adds a leaf that reads parts which the kernel of another slot computes.
void Share(SharedParts* shared, ProbeSlot* slot, const DirectSlot& direct, const Device& device,
           cudaStream_t stream, bool hash) {
  // Before there is a leaf that reads them, the kernel knows that it must not leave them out.
  Tell(&shared->last_sharer->next_sharer, static_cast<const DirectState*>(direct.state), device);
  shared->last_sharer = direct.state;
  slot->parts = shared->memory;
  // The leaves before it on the same branch follow the kernel, so the compute path needs no further
  // edge.
  CaptureInfo info = GetCaptureInfo(stream);
  const LastLeaf* last = FindLastLeaf(info.id, device.index);
  if (last != nullptr && last->branch == shared->branch) info.dependency_count = 0;
  const StatsLeafArgs leaf = {direct, shared->parts, shared->part_count, hash, false, 0, 0};
  AddLeaf(info, device, StatsLeafKernel(), 1, kStatsLeafThreads, leaf);
}

void CaptureStats(ProbeSlot* slot, const DirectSlot& direct, const Device& device,
                  const TensorRef& tensor, cudaStream_t stream) {
  const layout::SlotRegistration& r = slot->registration;
  const bool is_staged = (r.flags & layout::kSlotUnstaged) == 0;
  const bool hash = (r.flags & layout::kStatsWithoutHash) == 0;
  const std::uint64_t bytes = TensorBytes(r);
  StatsArgs args = {};
  args.from = static_cast<const std::byte*>(tensor.data);
  args.count = ElementCount(r);
  args.state = direct.state;
  if (!is_staged && bytes <= kStableLeafBytes) {
    const int blocks = Blocks(bytes, kStableLeafBytesPerBlock, kMostLeafBlocks);
    LeafArgs leaf = {};
    leaf.slot = direct;
    leaf.staging = args.from;
    leaf.bytes = bytes;
    leaf.count = args.count;
    leaf.parts = slot->TakeParts(static_cast<std::uint64_t>(blocks), device.index);
    leaf.hash = hash;
    leaf.only_stats = true;
    AddLeaf(GetCaptureInfo(stream), device, LeafKernel(tensor.dtype), blocks, kLeafThreads, leaf);
    return;
  }
  const StatsGrid grid = GridOfStats(tensor.dtype, bytes, device);
  SharedParts computed;
  computed.data = args.from;
  computed.count = args.count;
  computed.dtype = tensor.dtype;
  computed.counted = slot->counted.get();
  computed.last_sharer = direct.state;
  computed.part_count = grid.parts();
  const std::uint64_t capture_id = GetCaptureInfo(stream).id;
  const Position before = PositionOf(stream);
  SharedParts* const shared = is_staged ? Here().Find(capture_id, before, computed) : nullptr;
  if (shared != nullptr) return Share(shared, slot, direct, device, stream, hash);
  args.parts = slot->TakeParts(grid.parts(), device.index);
  computed.parts = args.parts;
  computed.memory = slot->parts;
  const void* const kernel =
      grid.on_tensor_cores ? TensorCoreStatsKernel() : StatsKernel(tensor.dtype);
  cudaGraphNode_t front = nullptr;
  if (is_staged) {
    args.follows = Here().IsAt(capture_id, before);
    if (args.follows) SetFollowed(before.nodes.front());
    Launch(kernel, grid.blocks, kStatsThreads, &args, stream, device.overlaps);
  } else {
    front =
        AddInFrontOfLeaf(GetCaptureInfo(stream), device, kernel, grid.blocks, kStatsThreads, args);
  }
  const bool starts_early = is_staged && StartsEarly(grid);
  const StatsLeafArgs leaf = {direct, args.parts, grid.parts(), hash, starts_early, 0, 0};
  AddLeaf(GetCaptureInfo(stream), device, StatsLeafKernel(), 1, kStatsLeafThreads, leaf, front,
          starts_early ? Start::kBesideAll : Start::kBesideLast);
  if (!is_staged) return;
  computed.branch = FindLastLeaf(capture_id, device.index)->branch;
  Here().Add(capture_id, before, PositionOf(stream), computed);
}

void CaptureCompare(const ProbeSlot& slot, const StageArgs& stage, const DirectSlot& direct,
                    const Device& device, Dtype dtype, cudaStream_t stream) {
  const layout::SlotRegistration& r = slot.registration;
  const int blocks = CompareBlocks(r.payload_bytes);
  const ProbeSlot* reference = slot.reference;
  std::byte* expected = reference == nullptr ? stage.to + ExpectedOffset(r) : reference->staged;
  CGD_CUDA(cudaMemsetAsync(direct.compare, 0, CompareStateBytes(r), device.stream));
  const CompareState start = {0, 0, expected, static_cast<std::uint64_t>(blocks), {}};
  CGD_CUDA(cudaMemcpyAsync(direct.compare, &start, offsetof(CompareState, findings),
                           cudaMemcpyHostToDevice, device.stream));
  if (slot.expected != nullptr) {
    CGD_CUDA(cudaMemcpyAsync(expected, slot.expected->data, r.payload_bytes, cudaMemcpyHostToDevice,
                             device.stream));
  }
  CGD_CUDA(cudaStreamSynchronize(device.stream));
  constexpr double kMargin = 1 - 0x1p-20;
  constexpr double kMost = std::numeric_limits<float>::max();
  CompareArgs args = {};
  args.from = stage.from;
  args.expected = expected;
  args.to = stage.to;
  args.count = ElementCount(r);
  args.rtol = r.compare_rtol;
  args.atol = r.compare_atol;
  args.sure_rtol = static_cast<float>(std::min(r.compare_rtol * kMargin, kMost));
  args.sure_atol = static_cast<float>(std::min(r.compare_atol * kMargin, kMost)) - 0x1p-120f;
  args.equal_nan = (r.flags & layout::kCompareEqualNan) != 0;
  args.bitwise = (r.flags & layout::kCompareBitwise) != 0;
  args.vectors = reinterpret_cast<std::uintptr_t>(stage.from) % 16 == 0;
  args.first = (r.flags & layout::kCompareFirst) != 0;
  args.scalar = r.dims == 0;
  args.state = direct.state;
  args.compare = direct.compare;
  // The other probe's copy comes first, also if another stream made it.
  const bool joins = reference != nullptr && reference->staged_on != stream;
  if (joins) Join(stream, reference->staged_by);
  Launch(CompareKernel(dtype), blocks, kCompareThreads, &args, stream, device.overlaps && !joins);
}

void CaptureValues(const ProbeSlot& slot, const DirectSlot& direct, const Device& device,
                   const TensorRef& tensor, cudaStream_t stream) {
  const layout::SlotRegistration& r = slot.registration;
  StageArgs args = {};
  args.from = static_cast<const std::byte*>(tensor.data);
  args.to = static_cast<std::byte*>(slot.buffers.staging);
  args.bytes = r.payload_bytes;
  args.state = direct.state;
  const bool is_staged = (r.flags & (layout::kSlotUnstaged | layout::kSlotHoldsOpLog)) == 0;
  if (direct.compare != nullptr) {
    CaptureCompare(slot, args, direct, device, tensor.dtype, stream);
  } else if (is_staged) {
    LaunchStage(tensor, args, device, stream);
  }
  LeafArgs leaf = {};
  leaf.slot = direct;
  leaf.staging = is_staged ? args.to : args.from;
  leaf.bytes = r.payload_bytes;
  leaf.count = ElementCount(r);
  leaf.hash = (r.flags & layout::kStatsWithoutHash) == 0;
  leaf.parts = reinterpret_cast<layout::DeviceStats*>(args.to + PartsOffset(r));
  cudaGraphNode_t front = nullptr;
  if (direct.skips_unchanged) {
    const HashArgs hash = {leaf.staging, leaf.bytes, direct.state};
    front = AddInFrontOfLeaf(GetCaptureInfo(stream), device, HashKernel(),
                             HashBlocks(leaf.bytes, device), kHashThreads, hash);
  }
  AddLeaf(GetCaptureInfo(stream), device, LeafKernel(tensor.dtype), 1, kLeafThreads, leaf, front);
}

// A slot whose values stay in device memory (device_ring.h).
void CaptureOnDevice(const ProbeSlot& slot, const DirectSlot& direct, const Device& device,
                     const ring::SegmentWriter& segment, const TensorRef& tensor,
                     cudaStream_t stream) {
  const layout::SlotRegistration& r = slot.registration;
  const LastLeaf* last = FindLastLeaf(GetCaptureInfo(stream).id, device.index);
  DeviceStageArgs args = {};
  args.from = static_cast<const std::byte*>(tensor.data);
  args.bytes = r.payload_bytes;
  args.ring = RingOf(r, slot.buffers.staging);
  args.state = direct.state;
  args.gate = direct.gate;
  args.shared_serial = last != nullptr                   ? last->serial
                       : direct.shared_serial != nullptr ? direct.shared_serial
                                                         : &direct.state->shared_serial;
  DeviceLeafArgs leaf = {};
  leaf.count = ElementCount(r);
  const bool has_parts = StagesParts(r) && CanStageParts(tensor);
  if (has_parts) {
    auto* const parts = reinterpret_cast<layout::DeviceStats*>(args.ring.entries + PartsOffset(r));
    const StatsGrid grid = GridOfStats(tensor.dtype, r.payload_bytes, device);
    DeviceStatsArgs stats = {args, layout::MakesStatistics(r), leaf.count, parts};
    leaf.parts = parts;
    leaf.part_count = grid.parts();
    leaf.starts_early = StartsEarly(grid);
    Launch(grid.on_tensor_cores ? DeviceTensorCoreStatsKernel() : DeviceStatsKernel(tensor.dtype),
           grid.blocks, kStatsThreads, &stats, stream, device.overlaps);
  } else {
    const int unit = StageUnit(tensor, args.bytes);
    args.from_stride = tensor.element_stride;
    Launch(tensor.element_stride == 1 ? DeviceStageKernel(unit) : DeviceGatherKernel(unit),
           StageBlocks(args.bytes, unit), kStageThreads, &args, stream, device.overlaps);
  }
  std::byte* const control = segment.mapping(0).data;
  std::byte* const window = slot.block.data + layout::GeometryOf(r).window_offset;
  leaf.slot = direct;
  leaf.ring = args.ring;
  leaf.bytes = r.payload_bytes;
  leaf.window = reinterpret_cast<layout::DeviceWindow*>(window);
  leaf.request =
      reinterpret_cast<const layout::WindowRequest*>(window + sizeof(layout::DeviceWindow));
  leaf.window_payload = window + layout::kWindowPayloadOffset;
  const auto line = static_cast<std::uint32_t>(device.index);
  if (line < layout::kMaxFreezeDevices) {
    leaf.freeze = reinterpret_cast<layout::FreezeLine*>(control + layout::kFreezeLineOffset) + line;
    leaf.thaw = reinterpret_cast<const layout::ThawLine*>(control + layout::kThawLineOffset) + line;
  }
  leaf.trigger = static_cast<layout::ControlTrigger>(r.trigger);
  leaf.trigger_times = r.trigger_times;
  leaf.threshold = r.trigger_threshold;
  leaf.hash = (r.flags & layout::kStatsWithoutHash) == 0;
  const CaptureInfo info = GetCaptureInfo(stream);
  if (has_parts) {
    AddLeaf(info, device, DeviceStatsLeafKernel(), 1, kStatsLeafThreads, leaf, nullptr,
            leaf.starts_early ? Start::kBesideAll : Start::kBesideLast);
    return;
  }
  AddLeaf(info, device, DeviceLeafKernel(tensor.dtype), 1, kLeafThreads, leaf);
}

// Where the eager calls of a stream put the parts of their statistics: each leaf has read them
// before the next call writes there.
layout::DeviceStats* EagerParts(const Device& device, cudaStream_t stream) {
  static auto* memory = new StreamMemory("statistics of eager calls are made");
  const auto most = static_cast<std::uint64_t>(kStatsBlocksPerMultiprocessor) *
                    static_cast<std::uint64_t>(device.multiprocessors) * (kStatsThreads / 32);
  return static_cast<layout::DeviceStats*>(
      memory->Of(device.index, stream, most * sizeof(layout::DeviceStats)));
}

}  // namespace

void LaunchEagerStats(ProbeSlot* slot, const ring::SegmentWriter& segment, const TensorRef& tensor,
                      std::uint64_t call, std::int64_t step, void* stream_handle) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(tensor.device_index);
  const RelaxedCapture relaxed;
  const Device& device = GetDevice(tensor.device_index);
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
  const StatsGrid grid = GridOfStats(tensor.dtype, bytes, device);
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

bool GridsOverlap(int device) { return GetDevice(device).overlaps; }

std::optional<LaneRefusal> DirectLaneRefused(int device) {
  static auto* known = new std::map<int, std::optional<LaneRefusal>>;
  const auto found = known->find(device);
  if (found != known->end()) return found->second;
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  return known->emplace(device, FindRefusal(device)).first->second;
}

bool MappingRefused() { return Mapping().has_value(); }

std::optional<LaneRefusal> MapForDevice(const ring::SegmentWriter& segment,
                                        const ring::Block& block, int device) {
  static auto* mapped = new std::map<std::byte*, std::uint64_t>;
  std::optional<LaneRefusal>& refused = Mapping();
  if (refused) return refused;
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  for (const std::uint32_t extent : {std::uint32_t{0}, block.extent}) {
    const auto [data, bytes] = segment.mapping(extent);
    if (mapped->count(data) != 0) continue;
    const cudaError_t status =
        cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (SaysThatMemoryCannotBeLocked(status)) {
      (void)cudaGetLastError();
      refused = LaneRefusal{LaneReason::kNotRegistered,
                            "cudaHostRegister of " + std::to_string(bytes) +
                                " bytes of shared memory failed: " + cudaGetErrorName(status) +
                                ". " + LockedMemoryAdvice()};
      return refused;
    }
    CheckCuda(status, "cudaHostRegister");
    mapped->emplace(data, bytes);
  }
  return std::nullopt;
}

std::uint64_t DirectStagingBytes(const layout::SlotRegistration& registration, int device) {
  if ((registration.flags & layout::kSlotIsReference) == 0) {
    return OwnStagingBytes(registration, device);
  }
  return StagedOffset(registration, device) + TensorBytes(registration);
}

void BeginDirect(ProbeSlot* slot, int device_index, void* stream) {
  const DeviceGuard guard(device_index);
  const RelaxedCapture relaxed;
  const CaptureInfo info = GetCaptureInfo(static_cast<cudaStream_t>(stream));
  const Device& device = GetDevice(device_index);
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

void HoldWithoutLeaf(ProbeSlot* slot, int device_index, void* stream_handle) noexcept {
  const std::shared_ptr<CountedGraph> counted = std::exchange(slot->counted, nullptr);
  if (counted == nullptr) return;
  try {
    const DeviceGuard guard(device_index);
    const RelaxedCapture relaxed;
    const CaptureInfo info = GetCaptureInfo(static_cast<cudaStream_t>(stream_handle));
    if (info.status == cudaStreamCaptureStatusActive && info.id == counted->id()) {
      return RetainByGraph(info.graph, slot);
    }
  } catch (const std::exception&) {
    (void)cudaGetLastError();
  }
  counted->Escape();
}

void CaptureDirect(ProbeSlot* slot, const ring::SegmentWriter& segment, const TensorRef& tensor,
                   void* stream_handle) {
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  const DeviceGuard guard(tensor.device_index);
  const RelaxedCapture relaxed;
  const bool in_body = (slot->registration.flags & layout::kSlotInBody) != 0;
  RootGraph* root = slot->root_graph.get();
  if (in_body && root == nullptr) {
    throw ProbeError(
        ErrorKind::kUnsupported,
        "a probe in the body of a conditional node (torch.cond, while_loop) must know the graph "
        "that contains the node, to number its replays. Under torch.cuda.graph it does, if cgdebug "
        "was imported before the capture began. In C++ keep a cgdebug::ScopedRootGraph while the "
        "body is captured");
  }
  if (!slot->life.held_by_graph()) BeginDirect(slot, tensor.device_index, stream);
  const Device& device = GetDevice(tensor.device_index);
  DirectSlot direct = Describe(*slot, segment, device);
  if (in_body) FollowRoot(root, device, &direct);
  if ((slot->registration.flags & layout::kSlotHoldsOpLog) != 0) TellRows(direct, device);
  try {
    if ((slot->registration.flags & layout::kSlotIsReference) != 0) {
      CaptureStaged(slot, device, tensor, stream);
    }
    if (HoldsStats(slot->registration)) {
      CaptureStats(slot, direct, device, tensor, stream);
    } else if (IsOnDevice(*slot)) {
      CaptureOnDevice(*slot, direct, device, segment, tensor, stream);
    } else {
      CaptureValues(*slot, direct, device, tensor, stream);
    }
    if (slot->counted != nullptr) slot->counted->AddLeaf(slot->buffers.runs);
  } catch (...) {
    // A kernel on the compute path may be in the graph, and no leaf counts its runs.
    if (std::exchange(slot->counted, nullptr) != nullptr) {
      RetainByGraph(GetCaptureInfo(stream).graph, slot);
    }
    throw;
  }
  if (in_body) TellReplays(root, device.index, device.stream, direct.head);
}

}  // namespace cgdebug::capture
