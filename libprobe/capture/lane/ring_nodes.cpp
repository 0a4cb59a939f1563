#include "libprobe/capture/graph/kernel_launch.h"
#include "libprobe/capture/graph/staging_layout.h"
#include "libprobe/capture/kernels/device_ring_kernels.h"
#include "libprobe/capture/lane/lane_call.h"
#include "libprobe/capture/memory/device_ring.h"

namespace cgdebug::capture {
namespace {

// Up to so many bytes of a ring on the device the leaf computes statistics that the live control
// asks for. The kernel that stages larger tensors does it; it copies a little slower than the
// other.
constexpr std::uint64_t kLeafStatsBytes = 1ull << 20;

bool CanStageParts(const TensorRef& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && tensor.element_stride == 1;
}

DeviceStageArgs StageArgsOf(const LaneCall& call) {
  const LeafBranches::Branch* const branch = call.leaves.Find(GetCaptureInfo(call.stream).id);
  const DirectSlot& direct = call.direct;
  DeviceStageArgs args = {};
  args.from = call.from();
  args.bytes = call.registration().payload_bytes;
  args.ring = RingOf(call.registration(), call.slot->buffers.staging);
  args.state = direct.state;
  args.gate = direct.gate;
  args.shared_serial = branch != nullptr                 ? branch->serial
                       : direct.shared_serial != nullptr ? direct.shared_serial
                                                         : &direct.state->shared_serial;
  args.from_stride = call.tensor.element_stride;
  return args;
}

// But for the parts.
DeviceLeafArgs LeafArgsOf(const LaneCall& call) {
  const layout::SlotRegistration& r = call.registration();
  std::byte* const control = call.segment.mapping(0).data;
  std::byte* const window = call.slot->block.data + layout::GeometryOf(r).window_offset;
  DeviceLeafArgs leaf = {};
  leaf.slot = call.direct;
  leaf.ring = RingOf(r, call.slot->buffers.staging);
  leaf.bytes = r.payload_bytes;
  leaf.count = ElementCount(r);
  leaf.window = reinterpret_cast<layout::DeviceWindow*>(window);
  leaf.request =
      reinterpret_cast<const layout::WindowRequest*>(window + sizeof(layout::DeviceWindow));
  leaf.window_payload = window + layout::kWindowPayloadOffset;
  const auto line = static_cast<std::uint32_t>(call.device.index);
  if (line < layout::kMaxFreezeDevices) {
    leaf.freeze = reinterpret_cast<layout::FreezeLine*>(control + layout::kFreezeLineOffset) + line;
    leaf.thaw = reinterpret_cast<const layout::ThawLine*>(control + layout::kThawLineOffset) + line;
  }
  leaf.trigger = static_cast<layout::ControlTrigger>(r.trigger);
  leaf.trigger_times = r.trigger_times;
  leaf.threshold = r.trigger_threshold;
  leaf.hash = call.hashes();
  return leaf;
}

}  // namespace

bool StagesParts(const layout::SlotRegistration& registration) {
  return (registration.flags & layout::kSlotOnDevice) != 0 &&
         (layout::MakesStatistics(registration) || registration.payload_bytes > kLeafStatsBytes);
}

void CaptureRing(const LaneCall& call) {
  const layout::SlotRegistration& r = call.registration();
  const Dtype dtype = call.tensor.dtype;
  DeviceStageArgs stage = StageArgsOf(call);
  DeviceLeafArgs leaf = LeafArgsOf(call);
  if (!StagesParts(r) || !CanStageParts(call.tensor)) {
    const StageGrid grid = StageGrid::Of(call.tensor, stage.bytes);
    Launch(grid.gathers ? DeviceGatherKernel(grid.unit) : DeviceStageKernel(grid.unit), grid.blocks,
           kStageThreads, &stage, call.stream, call.device.overlaps);
    call.leaves.AddLeaf(GetCaptureInfo(call.stream), {DeviceLeafKernel(dtype), 1, kLeafThreads},
                        leaf);
    return;
  }
  auto* const parts =
      reinterpret_cast<layout::DeviceStats*>(call.Staging(call.slot->staging.parts));
  const StatsGrid grid = call.device.GridOfStats(dtype, r.payload_bytes);
  DeviceStatsArgs stats = {stage, layout::MakesStatistics(r), leaf.count, parts};
  Launch(grid.on_tensor_cores ? DeviceTensorCoreStatsKernel() : DeviceStatsKernel(dtype),
         grid.blocks, kStatsThreads, &stats, call.stream, call.device.overlaps);
  leaf.parts = parts;
  leaf.part_count = grid.parts();
  leaf.starts_early = grid.starts_leaf_early();
  call.leaves.AddLeaf(GetCaptureInfo(call.stream), {DeviceStatsLeafKernel(), 1, kStatsLeafThreads},
                      leaf, nullptr, leaf.starts_early ? Start::kBesideAll : Start::kBesideLast);
}

}  // namespace cgdebug::capture
