#include "libprobe/probe_table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "libprobe/capture/cuda_lane.h"
#include "libprobe/capture/direct_lane.h"
#include "libprobe/process_identity.h"
#include "libprobe/registration.h"
#include "libprobe/ring/realtime.h"
#include "libprobe/ring/reclaim.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/shared_mark.h"
#include "libprobe/ring/utf8.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

constexpr double kReclaimAfterSeconds = 3600;
constexpr std::size_t kMaxOpenCaptures = 16;

// CGDEBUG_LANE decides for probes that leave it open.
LaneChoice ChooseLane(LaneChoice choice) {
  const char* setting = std::getenv("CGDEBUG_LANE");
  if (choice != LaneChoice::kAuto || setting == nullptr) return choice;
  if (std::strcmp(setting, "callback") == 0) return LaneChoice::kCallback;
  if (std::strcmp(setting, "direct") == 0) return LaneChoice::kDirect;
  return choice;
}

// `cgdebug-cli run -o` sets CGDEBUG_LOSSLESS for its job; a recording that waits for any job leaves
// a mark.
bool LosslessWanted() {
  if (DaemonForbidden()) return false;
  const char* setting = std::getenv("CGDEBUG_LOSSLESS");
  if (setting != nullptr && *setting != '\0') return std::strcmp(setting, "0") != 0;
  return ring::IsMarked(ring::MarkKind::kRecorder);
}

bool OnGpu(const TensorRef& tensor) { return tensor.device_type == DeviceType::kCuda; }

template <typename T>
void MakeRoomForOne(std::vector<T>& list) {
  if (list.size() == list.capacity()) list.reserve(2 * list.size() + 1);
}

// Keeps the error for status() and makes sure that it names the probe.
ProbeError Named(ProbeState& probe, const ProbeError& error) {
  const std::string text = error.what();
  const std::string name = "probe '" + probe.name + "'";
  probe.last_error = text.rfind(name, 0) == 0 ? text : name + ": " + text;
  return ProbeError(error.kind(), probe.last_error);
}

}  // namespace

void ProbeTable::Register(const std::shared_ptr<ProbeState>& probe) {
  const ProbeOptions& options = probe->options;
  const bool needs_daemon = options.print || options.compare || options.stats ||
                            (options.record && options.record->to_disk);
  bool start_daemon = false;
  {
    const std::lock_guard lock(mutex_);
    probe->id = next_probe_id_++;
    probe->site = std::to_string(++made_[probe->name]) + ":" + probe->name;
    probes_[probe->id] = probe;
    sites_[probe->site] = probe;
    AdoptInThisProcess(*probe);
    if (needs_daemon && !asked_for_daemon_ && DaemonSetting() == "1") {
      start_daemon = asked_for_daemon_ = true;
    }
  }
  if (!start_daemon) return;
  try {
    StartDaemon();
  } catch (const ProbeError& error) {
    const std::lock_guard lock(mutex_);
    (void)Named(*probe, error);  // the job goes on; what is not printed or compared says so
  }
}

std::shared_ptr<ProbeState> ProbeTable::Find(std::string_view site) {
  const std::lock_guard lock(mutex_);
  const auto found = sites_.find(site);
  return found == sites_.end() ? nullptr : found->second.lock();
}

ring::SegmentWriter& ProbeTable::Segment() {
  if (segment_ == nullptr) {
    ring::ReclaimDeadSegments(kReclaimAfterSeconds);
    segment_ = std::make_unique<ring::SegmentWriter>(CurrentIdentity());
    // A SetStep() that runs meanwhile either is seen here or finds the producer's line itself.
    producer_.store(segment_->producer());
    for (std::int64_t step = step_.load();; step = step_.load()) {
      ring::StoreRelaxed(segment_->producer()->step, step);
      if (step == step_.load()) break;
    }
    lossless_ = LosslessWanted();
    // Snapshots written before the daemon has come may be overwritten, and all of them were asked
    // for.
    if (lossless_) segment_->gate()->AwaitReader(std::chrono::milliseconds(WaitDeadlineMs()));
  }
  return *segment_;
}

// --- slots -------------------------------------------------------------------------------------

ring::Block ProbeTable::Allocate(const std::string& probe, std::uint64_t bytes,
                                 std::uint64_t header_bytes) {
  try {
    try {
      return Segment().Allocate(bytes, header_bytes);
    } catch (const ring::SharedMemoryError& error) {
      if (!error.no_space()) throw;
    }
    Sweep(/*force=*/true);
    try {
      return Segment().Allocate(bytes, header_bytes);
    } catch (const ring::SharedMemoryError& error) {
      if (!error.no_space()) throw;
    }
    MakeRoom(bytes);
    return Segment().Allocate(bytes, header_bytes);
  } catch (const ring::SharedMemoryError& error) {
    throw ProbeError(error.no_space() ? ErrorKind::kNoSpace : ErrorKind::kSystem,
                     "probe '" + probe + "': " + error.what());
  }
}

std::shared_ptr<ring::Block> ProbeTable::ExpectedBlock(ProbeState& probe, std::size_t index) {
  if (probe.expected.size() <= index) probe.expected.resize(index + 1);
  std::shared_ptr<ring::Block>& shared = probe.expected[index];
  if (shared == nullptr) {
    const std::vector<std::byte>& bytes = probe.options.compare->expected[index].bytes;
    const ring::Block block = Allocate(probe.name, bytes.size(), 0);
    if (!bytes.empty()) std::memcpy(block.data, bytes.data(), bytes.size());
    ring::SegmentWriter* segment = segment_.get();
    shared = std::shared_ptr<ring::Block>(new ring::Block(block), [segment](ring::Block* gone) {
      segment->Free(*gone);
      delete gone;
    });
  }
  return shared;
}

std::unique_ptr<ProbeSlot> ProbeTable::MakeSlot(ProbeState& probe, const TensorRef& tensor,
                                                layout::Lane lane, layout::LaneReason reason) {
  const std::uint64_t bytes = CheckTensor(probe.name, tensor);
  Sweep(/*force=*/false);
  auto slot = std::make_unique<ProbeSlot>();
  slot->probe_id = probe.id;
  slot->registration = MakeRegistration(probe.name, probe.options, tensor, bytes, lane);
  slot->registration.lane_reason = static_cast<std::uint8_t>(reason);
  const auto geometry =
      layout::ComputeGeometry(slot->registration.payload_bytes, slot->registration.capacity);
  slot->block = Allocate(probe.name, geometry.block_bytes, geometry.payload_offset);
  if (lossless_) slot->registration.flags |= layout::kSlotLossless;
  return slot;
}

std::unique_ptr<ProbeSlot> ProbeTable::MakeCaptureSlot(ProbeState& probe, const TensorRef& tensor) {
  using capture::LaneRefusal;
  std::optional<LaneRefusal> refusal;
  std::unique_ptr<ProbeSlot> slot;
  const LaneChoice choice = ChooseLane(probe.options.lane);
  if (choice == LaneChoice::kCallback) {
    refusal = LaneRefusal{layout::LaneReason::kAsked, ""};
  } else {
    refusal = capture::DirectLaneRefused(tensor.device_index);
  }
  try {
    if (!refusal) {
      slot = MakeSlot(probe, tensor, layout::Lane::kDirect, layout::LaneReason::kNone);
      refusal = capture::MapForDevice(*segment_, slot->block, tensor.device_index);
      if (!refusal) {
        slot->buffers = capture::AllocateBuffers(
            capture::DirectStagingBytes(slot->registration, tensor.device_index),
            tensor.device_index, capture::Buffers::Kind::kDirect);
        return slot;
      }
      FreeSlot(*slot);
      slot.reset();
    }
    if (choice == LaneChoice::kDirect) {
      throw ProbeError(ErrorKind::kUnsupported,
                       "lane=\"direct\" cannot be used here: " + refusal->text +
                           ". lane=\"auto\" takes the callback lane instead");
    }
    probe.lane_note = refusal->text;
    slot = MakeSlot(probe, tensor, layout::Lane::kCallback, refusal->reason);
    slot->buffers = capture::AllocateBuffers(slot->registration.payload_bytes, tensor.device_index,
                                             capture::Buffers::Kind::kCallback);
    return slot;
  } catch (...) {
    if (slot != nullptr) FreeSlot(*slot);
    throw;
  }
}

std::unique_ptr<ProbeSlot> ProbeTable::TakePrepared(ProbeState& probe, const TensorRef& tensor) {
  for (auto it = probe.prepared.begin(); it != probe.prepared.end(); ++it) {
    if (!SameTensor((*it)->registration, tensor)) continue;
    std::unique_ptr<ProbeSlot> slot = std::move(*it);
    probe.prepared.erase(it);
    return slot;
  }
  return nullptr;
}

void ProbeTable::Complete(ProbeState& probe, ProbeSlot& slot, const TensorRef& tensor,
                          std::uint64_t graph_id, std::uint32_t invocation,
                          const std::string& site) {
  layout::SlotRegistration& r = slot.registration;
  if (!site.empty()) {
    std::memset(r.site, 0, sizeof(r.site));
    std::memcpy(r.site, site.data(), ring::CutLength(site, layout::kMaxNameBytes));
  }
  if (probe.options.compare) {
    const CompareAction& compare = *probe.options.compare;
    slot.expected = ExpectedBlock(probe, ExpectedIndex(probe.name, compare, tensor, invocation));
    r.expected_extent = slot.expected->extent;
    r.expected_offset = slot.expected->offset;
  }
  r.probe_id = probe.id;
  r.graph_id = graph_id;
  r.invocation = invocation;
  if (graph_id != 0) {
    const Capture& capture = FindCapture(graph_id);
    slot.graph_serial = capture.serial;
    std::memcpy(r.graph_label, capture.label.data(), capture.label.size());
  }
  r.order = next_order_++;
  r.created_ns = ring::RealtimeNs();
  const std::string wrong = ring::CheckRegistration(r, slot.block.bytes);
  if (!wrong.empty()) throw ProbeError(ErrorKind::kSystem, "cannot describe the tensor: " + wrong);
  std::memcpy(slot.block.data, &r, sizeof(r));
  slot.writer.emplace(slot.block.data, segment_->producer(), segment_->gate());
}

// Takes `slot` only if it succeeds. Until then the caller keeps it, because a graph may refer to
// it.
ProbeSlot* ProbeTable::Publish(ProbeState& probe, std::unique_ptr<ProbeSlot>& slot) {
  MakeRoomForOne(slots_);  // now: nothing may throw once it is published
  MakeRoomForOne(probe.slots);
  try {
    if (segment_->directory_full()) Sweep(/*force=*/true);
    slot->index = segment_->Publish(slot->block);
    slot->reader = segment_->OpenSlot(slot->index, slot->block);
  } catch (const ring::SharedMemoryError& error) {
    throw ProbeError(ErrorKind::kNoSpace, "probe '" + probe.name + "': " + error.what());
  }
  probe.slots.push_back(slot.get());
  slots_.push_back(std::move(slot));
  return probe.slots.back();
}

// --- observing ---------------------------------------------------------------------------------

void ProbeTable::CaptureOne(ProbeState& probe, const TensorRef& tensor, void* stream,
                            std::uint64_t graph_id, const std::string& site) {
  if (probe.invocations.size() > kMaxOpenCaptures) {
    std::erase_if(probe.invocations, [&](const auto& item) { return item.first != graph_id; });
  }
  const std::uint32_t invocation = probe.invocations[graph_id]++;
  std::unique_ptr<ProbeSlot> slot = TakePrepared(probe, tensor);
  if (slot == nullptr) slot = MakeCaptureSlot(probe, tensor);
  try {
    Complete(probe, *slot, tensor, graph_id, invocation, site);
    if (slot->buffers.kind == capture::Buffers::Kind::kDirect) {
      capture::CaptureDirect(slot.get(), *segment_, tensor, stream, probe.options.prefer_link);
    } else {
      capture::CaptureLeaf(slot.get(), tensor, stream);
    }
    Publish(probe, slot);
  } catch (...) {
    slot->armed.store(false);
    slot->probe_gone.store(true);
    if (slot->in_use()) {
      slots_.push_back(std::move(slot));  // the half-built graph refers to it
    } else {
      FreeSlot(*slot);
    }
    throw;
  }
}

void ProbeTable::ObserveCuda(ProbeState& probe, const TensorRef& tensor, void* stream) {
  capture::StreamCapture capture;
  try {
    capture = capture::QueryCapture(stream);
  } catch (const ProbeError& error) {
    const std::lock_guard lock(mutex_);
    throw Named(probe, error);
  }
  if (!capture.capturing && probe.options.mode == ProbeMode::kCapture) return;
  has_gpu_memory_.store(true, std::memory_order_relaxed);
  const Trimmer trimmer(*this, capture.capturing);
  std::unique_lock lock(mutex_);
  AdoptInThisProcess(probe);
  if (probe.closed) return;
  try {
    if (capture.capturing) {
      const std::string site = CallSite(probe, lock);
      if (!probe.closed) CaptureOne(probe, tensor, stream, capture.id, site);
    } else if (ProbeSlot* slot = EagerSlot(probe, tensor, stream, lock)) {
      capture::LaunchEager(slot, tensor, stream);
    }
  } catch (const ProbeError& error) {
    throw Named(probe, error);
  }
}

void ProbeTable::ObserveHost(ProbeState& probe, const TensorRef& tensor) {
  if (probe.options.mode == ProbeMode::kCapture) return;
  ProbeSlot* slot = nullptr;
  {
    std::unique_lock lock(mutex_);
    AdoptInThisProcess(probe);
    if (probe.closed) return;
    try {
      slot = EagerSlot(probe, tensor, nullptr, lock);
    } catch (const ProbeError& error) {
      throw Named(probe, error);
    }
    if (slot == nullptr) return;
    slot->pending.fetch_add(1, std::memory_order_relaxed);
  }
  {
    const std::lock_guard lock(slot->eager_mutex);
    if (slot->writer->Begin(slot->TakeSerial())) {
      ring::CopyShared(slot->writer->payload(), tensor.data, slot->writer->payload_bytes());
      slot->writer->Commit(ring::RealtimeNs());
    }
  }
  slot->pending.fetch_sub(1, std::memory_order_release);
}

void ProbeTable::Observe(ProbeState& probe, const TensorRef& tensor, void* stream) {
  if (OnGpu(tensor)) {
    ObserveCuda(probe, tensor, stream);
  } else {
    ObserveHost(probe, tensor);
  }
}

void ProbeTable::Prepare(ProbeState& probe, const TensorRef& tensor) {
  if (OnGpu(tensor)) has_gpu_memory_.store(true, std::memory_order_relaxed);
  const Trimmer trimmer(*this);
  const std::lock_guard lock(mutex_);
  AdoptInThisProcess(probe);
  if (probe.closed) throw ProbeError(ErrorKind::kClosed, "probe '" + probe.name + "' is closed");
  try {
    std::unique_ptr<ProbeSlot> slot =
        OnGpu(tensor) ? MakeCaptureSlot(probe, tensor)
                      : MakeSlot(probe, tensor, layout::Lane::kHost, layout::LaneReason::kNone);
    try {
      if (probe.options.compare) {
        ExpectedBlock(probe, ExpectedIndex(probe.name, *probe.options.compare, tensor, 0));
      }
      MakeRoomForOne(probe.prepared);
    } catch (...) {
      FreeSlot(*slot);
      throw;
    }
    probe.prepared.push_back(std::move(slot));
  } catch (const ProbeError& error) {
    throw Named(probe, error);
  }
}

}  // namespace cgdebug
