#include "libprobe/slots/slot_maker.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "daemon/core/words/settings.h"
#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/lane/direct_lane.h"
#include "libprobe/capture/memory/device_ring.h"
#include "libprobe/ring/utf8.h"
#include "libprobe/slots/registration.h"
#include "libprobe/slots/tensor_part.h"
#include "proto/layout/realtime.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

// CGDEBUG_LANE decides for probes that leave it open.
LaneChoice ChooseLane(LaneChoice choice) {
  if (choice != LaneChoice::kAuto) return choice;
  const std::string setting = words::ReadSetting("CGDEBUG_LANE");
  if (setting.empty()) return choice;
  return setting == "direct" ? LaneChoice::kDirect : LaneChoice::kCallback;
}

bool HasExpected(const ProbeState& probe) {
  const auto& compare = probe.options.compare;
  return compare && compare->with == CompareAction::With::kTensors;
}

// What the probe expects of `tensor`, in shared memory, which its slots share.
std::shared_ptr<ring::Block> ExpectedBlock(SlotStore& store, ProbeState& probe, std::size_t index,
                                           const TensorRef& tensor) {
  const ExpectedTensor& expected = probe.options.compare->expected[index];
  const bool takes_part = probe.part && expected.shape == tensor.full_shape;
  std::shared_ptr<ring::Block>& shared = probe.expected[{index, takes_part}];
  if (shared == nullptr) {
    shared = store.Share(
        probe.name, takes_part ? BytesOfPart(probe.name, *probe.part, expected) : expected.bytes);
  }
  return shared;
}

void SetCapacity(layout::SlotRegistration* registration, std::uint32_t capacity) {
  layout::SlotRegistration& r = *registration;
  r.capacity = std::max(r.capacity, capacity);
  SetGeometry(&r);
}

// The daemon must find the values of each replay, unless the GPU compares.
void MakeReference(layout::SlotRegistration* registration) {
  layout::SlotRegistration& r = *registration;
  r.flags |= layout::kSlotIsReference;
  if (r.lane == static_cast<std::uint8_t>(layout::Lane::kDirect)) return;
  r.policy = static_cast<std::uint8_t>(layout::Policy::kWait);
  SetCapacity(&r, kReferenceCapacity);
}

// How many more bytes of the device the rings of this process may take.
std::uint64_t DeviceRoom(const SlotStore& store, int device) {
  std::uint64_t limit = DeviceRingLimit();
  const std::uint64_t used = store.held().BytesOnDevice(device);
  if (limit == 0) {
    const capture::DeviceMemory memory = capture::MemoryOf(device);
    limit = std::min(memory.total / 4, (memory.free + used) / 2);
  }
  return limit - std::min(limit, used);
}

// Whether the leaf reads the tensor itself. It reads values 16 bytes at a time. A tensor that was
// packed lies in memory that the next operation may get.
bool IsLeftUnstaged(const ProbeOptions& options, const layout::SlotRegistration& r,
                    const TensorRef& tensor) {
  constexpr std::uint32_t kNeedsACopy = layout::kSlotOnDevice | layout::kSlotComparesOnDevice;
  const auto place = reinterpret_cast<std::uintptr_t>(tensor.data) | r.payload_bytes;
  return options.stable && r.lane == static_cast<std::uint8_t>(layout::Lane::kDirect) &&
         (r.flags & kNeedsACopy) == 0 && !tensor.packed_from_strided &&
         tensor.element_stride == 1 && place % 16 == 0;
}

bool OnGpu(const TensorRef& tensor) { return tensor.device_type == DeviceType::kCuda; }

// Makes the slot compare with the one of the other probe.
void SetReference(const ProbeState& probe, const TensorRef& tensor, bool in_body, ProbeSlot* slot) {
  if (in_body) {
    throw ProbeError(ErrorKind::kUnsupported,
                     "TensorCompare(expected=PROBE) does not work in the body of a conditional "
                     "node");
  }
  slot->reference = FindReference(probe, *slot, tensor);
  slot->registration.reference_order = slot->reference->registration.order;
  slot->registration.reference_index = slot->reference->index;
}

}  // namespace

std::unique_ptr<ProbeSlot> SlotMaker::Make(ProbeState& probe, const TensorRef& tensor,
                                           layout::Lane lane, layout::LaneReason reason,
                                           Need need) {
  auto slot = std::make_unique<ProbeSlot>();
  try {
    Describe(probe, *slot, tensor, lane, reason, need);
  } catch (...) {
    store_->Discard(std::move(slot));
    throw;
  }
  return slot;
}

void SlotMaker::Describe(ProbeState& probe, ProbeSlot& slot, const TensorRef& tensor,
                         layout::Lane lane, layout::LaneReason reason, Need need) {
  const std::uint64_t bytes = CheckTensor(probe.name, tensor);
  store_->Sweep(/*force=*/false);
  slot.probe_id = probe.id;
  layout::SlotRegistration& r = slot.registration;
  const auto& record = probe.options.record;
  const bool bounded =
      record && record->on_device && record->bounded && lane == layout::Lane::kDirect;
  r = MakeRegistration(probe.name, probe.options, tensor, bytes, lane,
                       bounded ? DeviceRoom(*store_, tensor.device_index) : UINT64_MAX);
  r.lane_reason = static_cast<std::uint8_t>(reason);
  std::string note = WhyNoTrigger(probe.options, r);
  if (!note.empty()) probe.trigger_note = std::move(note);
  if (probe.is_reference) MakeReference(&r);
  // The job waits when the ring is full.
  if (segment_->lossless() && (r.flags & layout::kSlotHoldsStats) != 0) {
    SetCapacity(&r, layout::kLosslessStatsCapacity);
  }
  const auto geometry = layout::GeometryOf(r);
  if (need == Need::kEager) store_->EvictOldEager(probe, geometry.block_bytes);
  slot.block = store_->Allocate(probe.name, geometry.block_bytes, geometry.payload_offset, need);
  store_->Reserve(probe, slot, need);
  if (segment_->lossless()) r.flags |= layout::kSlotLossless;
}

std::unique_ptr<ProbeSlot> SlotMaker::MakeForCapture(ProbeState& probe, const TensorRef& tensor,
                                                     Need need) {
  using capture::LaneRefusal;
  std::optional<LaneRefusal> refusal;
  std::unique_ptr<ProbeSlot> slot;
  const LaneChoice choice = ChooseLane(probe.options.lane);
  if (choice == LaneChoice::kCallback) {
    refusal = LaneRefusal{layout::LaneReason::kAsked, ""};
  } else {
    refusal = capture::DirectLane::Refused(tensor.device_index);
  }
  try {
    if (!refusal) {
      slot = Make(probe, tensor, layout::Lane::kDirect, layout::LaneReason::kNone, need);
      refusal = capture::DirectLane::Map(*segment_->writer(), slot->block, tensor.device_index);
      if (!refusal) {
        capture::DirectLane::On(tensor.device_index).Prepare(slot.get());
        return slot;
      }
      store_->Discard(std::move(slot));
    }
    if (choice == LaneChoice::kDirect) {
      throw ProbeError(ErrorKind::kUnsupported,
                       "lane=\"direct\" cannot be used here: " + refusal->text +
                           ". lane=\"auto\" takes the callback lane instead");
    }
    probe.lane_note = refusal->text;
    slot = Make(probe, tensor, layout::Lane::kCallback, refusal->reason, need);
    slot->buffers = capture::AllocateBuffers(slot->registration.payload_bytes, tensor.device_index,
                                             capture::Buffers::Kind::kCallback);
    return slot;
  } catch (...) {
    if (slot != nullptr) store_->Discard(std::move(slot));
    throw;
  }
}

std::unique_ptr<ProbeSlot> SlotMaker::TakePrepared(ProbeState& probe, const TensorRef& tensor) {
  for (auto it = probe.prepared.begin(); it != probe.prepared.end(); ++it) {
    if (!SameTensor((*it)->registration, tensor)) continue;
    std::unique_ptr<ProbeSlot> slot = std::move(*it);
    probe.prepared.erase(it);
    return slot;
  }
  return nullptr;
}

void SlotMaker::Complete(ProbeState& probe, ProbeSlot& slot, const TensorRef& tensor,
                         const Call& call) {
  layout::SlotRegistration& r = slot.registration;
  if (!call.site.empty()) {
    std::memset(r.site, 0, sizeof(r.site));
    std::memcpy(r.site, call.site.data(), ring::CutLength(call.site, layout::kMaxNameBytes));
  }
  if (HasExpected(probe)) {
    const CompareAction& compare = *probe.options.compare;
    slot.expected = ExpectedBlock(
        *store_, probe, ExpectedIndex(probe.name, compare, tensor, call.invocation), tensor);
    r.expected_extent = slot.expected->extent;
    r.expected_offset = slot.expected->offset;
  }
  r.probe_id = probe.id;
  r.graph_id = call.place.graph_id;
  r.invocation = call.invocation;
  r.thread = call.thread;
  if (r.thread != 0) r.flags |= layout::kSlotInBody;
  if ((r.flags & layout::kCompareProbe) != 0)
    SetReference(probe, tensor, call.place.in_body, &slot);
  if (r.graph_id != 0) {
    const CapturedGraphs::Graph& graph = graphs_->Find(r.graph_id);
    slot.graph_serial = graph.serial;
    // DirectLane::Begin() has decided already for a page of an op log.
    if (slot.buffers.kind == capture::Buffers::Kind::kDirect && !slot.life.held_by_graph()) {
      slot.counted = graphs_->FindCounted(r.graph_id);
    }
    std::memcpy(r.graph_label, graph.label.data(), graph.label.size());
    segment_->CountProbe(r.graph_id, graph.label, r.payload_bytes);
  }
  if (tensor.element_stride != 1 && (r.flags & layout::kSlotComparesOnDevice) != 0) {
    if ((r.flags & layout::kCompareProbe) != 0) {
      throw ProbeError(
          ErrorKind::kUnsupported,
          "TensorCompare(expected=PROBE) does not take part=\"stride:K\" in the direct "
          "lane. Take \"rows:A:B\" or \"first:N\", or give both probes "
          "lane=\"callback\"");
    }
    r.flags &= ~layout::kSlotComparesOnDevice;  // its kernel reads contiguous tensors
  }
  if (call.place.in_body) {
    r.flags |= layout::kSlotInBody;
    r.flags &= ~layout::kSlotComparesOnDevice;  // a body's replays are not counted one by one
  }
  if (r.graph_id != 0 && IsLeftUnstaged(probe.options, r, tensor)) r.flags |= layout::kSlotUnstaged;
  slot.root_graph = call.place.root;
  r.order = std::exchange(next_order_, next_order_ + call.orders);
  r.created_ns = layout::RealtimeNs();
  const std::string wrong = ring::CheckRegistration(r, slot.block.bytes);
  if (!wrong.empty()) throw ProbeError(ErrorKind::kSystem, "cannot describe the tensor: " + wrong);
  std::memcpy(slot.block.data, &r, sizeof(r));
  if ((r.flags & layout::kSlotOnDevice) != 0) {  // it may have been another slot's
    std::memset(slot.block.data + layout::GeometryOf(r).window_offset, 0,
                layout::kWindowPayloadOffset);
  }
  slot.writer.emplace(slot.block.data, segment_->writer()->producer(), segment_->writer()->gate());
}

ProbeSlot* FindReference(const ProbeState& probe, const ProbeSlot& slot, const TensorRef& tensor) {
  const layout::SlotRegistration& r = slot.registration;
  const std::shared_ptr<ProbeState> other = probe.reference.lock();
  const auto fail = [&](const std::string& text) {
    return ProbeError(ErrorKind::kBadArgument,
                      "probe '" + probe.name + "' is compared with probe '" +
                          (other == nullptr ? "" : other->name) + "', " + text);
  };
  if (other == nullptr || other->closed) throw fail("which is closed");
  const bool in_graph = r.graph_id != 0;
  if (!in_graph && OnGpu(tensor)) {
    throw ProbeError(ErrorKind::kUnsupported,
                     "TensorCompare(expected=PROBE) compares tensors of captured graphs and those "
                     "on the CPU, not those of eager calls on the GPU");
  }
  const auto found =
      std::find_if(other->slots.rbegin(), other->slots.rend(), [&](const ProbeSlot* candidate) {
        const layout::SlotRegistration& o = candidate->registration;
        return in_graph ? o.graph_id == r.graph_id && o.invocation == r.invocation
                        : o.graph_id == 0 && o.thread == r.thread && SameTensor(o, tensor);
      });
  if (found == other->slots.rend()) {
    throw fail(in_graph
                   ? "which was not called before it in this graph (call " +
                         std::to_string(r.invocation) + ")"
                   : "which was not called with " + std::string(DtypeName(tensor.dtype)) +
                         ShapeText(tensor.shape) +
                         (tensor.part.empty() ? "" : " (part " + tensor.part + ")") + " before it");
  }
  const layout::SlotRegistration& o = (*found)->registration;
  TensorRef seen = tensor;
  seen.shard = o.shard;
  if (!SameTensor(o, seen)) {
    const std::vector<std::int64_t> shape(o.shape, o.shape + o.dims);
    const std::string part = o.part;
    if (part != tensor.part) {
      const auto words = [](const std::string& text) {
        return text.empty() ? "the whole tensor" : "part " + text;
      };
      throw fail("which saw " + words(part) + " there: this one sees " + words(tensor.part) +
                 ". Give both the same part");
    }
    throw fail("which saw " + std::string(DtypeName(static_cast<Dtype>(o.dtype))) +
               ShapeText(shape) + " there" +
               (o.device_index == tensor.device_index ? "" : " on another device") +
               ": the tensor is " + std::string(DtypeName(tensor.dtype)) + ShapeText(tensor.shape));
  }
  if (in_graph && (o.flags & layout::kSlotInBody) != 0) {
    throw fail("which is in the body of a conditional node, and may not run in each replay");
  }
  if (o.lane != r.lane) {
    throw fail("which is in another lane: give both the same lane");
  }
  if (in_graph && (o.flags & layout::kSlotIsReference) == 0) {
    throw fail("which does not know of it: make both before the capture");
  }
  return *found;
}

std::unique_ptr<ProbeSlot> SlotMaker::ForCapture(ProbeState& probe, const TensorRef& tensor) {
  std::unique_ptr<ProbeSlot> slot = TakePrepared(probe, tensor);
  return slot != nullptr ? std::move(slot) : MakeForCapture(probe, tensor, Need::kCapture);
}

std::unique_ptr<ProbeSlot> SlotMaker::ForEager(ProbeState& probe, const TensorRef& tensor,
                                               void* stream, const capture::Buffers& buffers) {
  std::unique_ptr<ProbeSlot> slot;
  if (!OnGpu(tensor)) {
    slot = TakePrepared(probe, tensor);
    if (slot == nullptr) {
      slot = Make(probe, tensor, layout::Lane::kHost, layout::LaneReason::kNone, Need::kEager);
    }
    return slot;
  }
  const bool by_kernels = buffers.kind == capture::Buffers::Kind::kEagerStats;
  slot = Make(probe, tensor, by_kernels ? layout::Lane::kDirect : layout::Lane::kCallback,
              layout::LaneReason::kEager, Need::kEager);
  if (by_kernels) {
    const auto refusal =
        capture::DirectLane::Map(*segment_->writer(), slot->block, tensor.device_index);
    if (refusal) {
      store_->Discard(std::move(slot));
      throw ProbeError(ErrorKind::kNoSpace, refusal->text);  // later calls send values
    }
  }
  slot->eager_stream = stream;
  return slot;
}

capture::Buffers::Kind SlotMaker::BuffersForEager(const ProbeState& probe,
                                                  const TensorRef& tensor) {
  const bool by_kernels = StatsAlone(probe.options) &&
                          ChooseLane(probe.options.lane) != LaneChoice::kCallback &&
                          !capture::DirectLane::Refused(tensor.device_index);
  return by_kernels ? capture::Buffers::Kind::kEagerStats : capture::Buffers::Kind::kEager;
}

void SlotMaker::CompleteOpLog(ProbeState& log, ProbeSlot& slot, const TensorRef& page,
                              std::span<const std::byte> table, layout::Lane lane,
                              std::uint64_t graph_id, std::uint32_t thread) {
  Describe(log, slot, page, lane, layout::LaneReason::kNone, Need::kWait);
  if (lane == layout::Lane::kDirect) {
    const auto refusal =
        capture::DirectLane::Map(*segment_->writer(), slot.block, page.device_index);
    if (refusal) {
      throw ProbeError(ErrorKind::kUnsupported,
                       "an op log of a graph needs the direct lane: " + refusal->text);
    }
  }
  slot.expected = store_->Share(log.name, table);
  layout::SlotRegistration& r = slot.registration;
  r.flags |= layout::kSlotHoldsOpLog;
  r.actions |= layout::kActionStats;  // what the daemon makes of it
  r.expected_extent = slot.expected->extent;
  r.expected_offset = slot.expected->offset;
  r.table_bytes = static_cast<std::uint32_t>(table.size());
  Complete(log, slot, page,
           {.place = {.graph_id = graph_id}, .orders = r.shape[0], .thread = thread});
}

void SlotMaker::Prepare(ProbeState& probe, const TensorRef& tensor) {
  std::unique_ptr<ProbeSlot> slot = OnGpu(tensor) ? MakeForCapture(probe, tensor, Need::kWait)
                                                  : Make(probe, tensor, layout::Lane::kHost,
                                                         layout::LaneReason::kNone, Need::kWait);
  try {
    if (HasExpected(probe)) {
      ExpectedBlock(*store_, probe, ExpectedIndex(probe.name, *probe.options.compare, tensor, 0),
                    tensor);
    }
    probe.prepared.emplace_back();
  } catch (...) {
    store_->Discard(std::move(slot));
    throw;
  }
  probe.prepared.back() = std::move(slot);
}

}  // namespace cgdebug
