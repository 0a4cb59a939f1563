#include "libprobe/probe_table.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "libprobe/capture/cuda_lane.h"
#include "libprobe/process_identity.h"
#include "libprobe/registration.h"
#include "libprobe/ring/shared_copy.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

constexpr double kReclaimAfterSeconds = 3600;
constexpr std::size_t kMaxEagerSlots = 64;  // of one probe: one a shape
constexpr std::size_t kMaxOpenCaptures = 16;

std::int64_t RealtimeNs() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool SameTensor(const layout::SlotRegistration& r, const TensorRef& tensor) {
  if (r.dtype != static_cast<std::uint16_t>(tensor.dtype) || r.dims != tensor.shape.size() ||
      r.device_type != static_cast<std::uint8_t>(tensor.device_type) ||
      r.device_index != tensor.device_index) {
    return false;
  }
  return std::equal(
      tensor.shape.begin(), tensor.shape.end(), r.shape,
      [](std::int64_t a, std::uint64_t b) { return static_cast<std::uint64_t>(a) == b; });
}

bool OnGpu(const TensorRef& tensor) { return tensor.device_type == DeviceType::kCuda; }

// Keeps the error for status(), and makes sure that it says which probe it happened to.
Error Named(ProbeState& probe, const Error& error) {
  const std::string text = error.what();
  const std::string name = "probe '" + probe.name + "'";
  probe.last_error = text.rfind(name, 0) == 0 ? text : name + ": " + text;
  return Error(error.kind(), probe.last_error);
}

void FinishAtExit() { (void)Finish(std::chrono::seconds(2)); }

}  // namespace

ProbeTable* ProbeTable::instance_ = nullptr;

ProbeTable& ProbeTable::Instance() {
  static const bool created = [] {
    instance_ = new ProbeTable;
    pthread_atfork(&AtForkPrepare, &AtForkParent, &AtForkChild);
    std::atexit(&FinishAtExit);
    return true;
  }();
  (void)created;
  return *instance_;
}

void ProbeTable::AtForkPrepare() { instance_->mutex_.lock(); }
void ProbeTable::AtForkParent() { instance_->mutex_.unlock(); }

// The child's probes keep their names and ids; segment, slots and CUDA memory are the parent's.
void ProbeTable::AtForkChild() {
  ProbeTable* parent = instance_;
  instance_ = new ProbeTable;
  instance_->probes_ = parent->probes_;
  instance_->next_probe_id_ = parent->next_probe_id_;
  instance_->step_ = parent->step_;
  parent->mutex_.unlock();
}

void ProbeTable::AdoptInThisProcess(ProbeState& probe) {
  const std::int32_t pid = getpid();
  if (probe.owner_pid == pid) return;
  if (probe.owner_pid != 0) {
    probe.slots.clear();
    probe.invocations.clear();
    for (auto& slot : probe.prepared) (void)slot.release();  // the parent's memory, not to be freed
    probe.prepared.clear();
    for (auto& block : probe.expected) (void)new std::shared_ptr<ring::Block>(std::move(block));
    probe.expected.clear();
  }
  probe.owner_pid = pid;
}

void ProbeTable::Register(const std::shared_ptr<ProbeState>& probe) {
  const std::lock_guard lock(mutex_);
  probe->id = next_probe_id_++;
  probes_[probe->id] = probe;
  AdoptInThisProcess(*probe);
}

std::shared_ptr<ProbeState> ProbeTable::Find(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = probes_.find(id);
  return found == probes_.end() ? nullptr : found->second.lock();
}

ring::SegmentWriter& ProbeTable::Segment() {
  if (segment_ == nullptr) {
    ring::ReclaimDeadSegments(kReclaimAfterSeconds);
    segment_ = std::make_unique<ring::SegmentWriter>(CurrentIdentity());
    ring::StoreRelaxed(segment_->producer()->step, step_);
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
      Sweep(/*force=*/true);
      return Segment().Allocate(bytes, header_bytes);
    }
  } catch (const ring::SharedMemoryError& error) {
    throw Error(error.no_space() ? ErrorKind::kNoSpace : ErrorKind::kSystem,
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

std::unique_ptr<ProbeSlot> ProbeTable::MakeSlot(ProbeState& probe, const TensorRef& tensor) {
  const std::uint64_t bytes = CheckTensor(probe.name, tensor);
  auto slot = std::make_unique<ProbeSlot>();
  slot->probe_id = probe.id;
  slot->registration = MakeRegistration(probe.name, probe.options, tensor, bytes);
  const auto geometry = layout::ComputeGeometry(bytes, slot->registration.capacity);
  slot->block = Allocate(probe.name, geometry.block_bytes, geometry.payload_offset);
  return slot;
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
                          std::uint64_t capture_id, std::uint32_t invocation) {
  layout::SlotRegistration& r = slot.registration;
  if (probe.options.compare) {
    const CompareAction& compare = *probe.options.compare;
    slot.expected = ExpectedBlock(probe, ExpectedIndex(probe.name, compare, tensor, invocation));
    r.expected_extent = slot.expected->extent;
    r.expected_offset = slot.expected->offset;
  }
  r.probe_id = probe.id;
  r.capture_id = capture_id;
  r.invocation = invocation;
  r.order = next_order_++;
  r.created_ns = RealtimeNs();
  std::memcpy(slot.block.data, &r, sizeof(r));
  slot.writer.emplace(slot.block.data, segment_->producer(), segment_->gate());
}

ProbeSlot* ProbeTable::Publish(ProbeState& probe, std::unique_ptr<ProbeSlot> slot) {
  try {
    slot->index = segment_->Publish(slot->block);
  } catch (const ring::SharedMemoryError& error) {
    throw Error(ErrorKind::kNoSpace, "probe '" + probe.name + "': " + error.what());
  }
  slot->reader = segment_->OpenSlot(slot->index, slot->block);
  probe.slots.push_back(slot.get());
  slots_.push_back(std::move(slot));
  return probe.slots.back();
}

ProbeSlot* ProbeTable::EagerSlot(ProbeState& probe, const TensorRef& tensor, void* stream) {
  std::vector<ProbeSlot*> eager;
  for (ProbeSlot* slot : probe.slots) {
    if (slot->in_graph) continue;
    if (slot->eager_stream == stream && SameTensor(slot->registration, tensor)) return slot;
    eager.push_back(slot);
  }
  if (eager.size() >= kMaxEagerSlots) {
    LetGo(*eager.front());
    std::erase(probe.slots, eager.front());
  }
  std::unique_ptr<ProbeSlot> slot = MakeSlot(probe, tensor);
  slot->eager_stream = stream;
  try {
    if (OnGpu(tensor)) {
      slot->buffers =
          capture::AllocateBuffers(slot->registration.payload_bytes, tensor.device_index,
                                   /*with_staging=*/false);
    }
    Complete(probe, *slot, tensor, 0, 0);
    return Publish(probe, std::move(slot));
  } catch (...) {
    if (slot != nullptr) FreeSlot(*slot);
    throw;
  }
}

// --- observing ---------------------------------------------------------------------------------

void ProbeTable::CaptureOne(ProbeState& probe, const TensorRef& tensor, void* stream,
                            std::uint64_t capture_id) {
  if (probe.invocations.size() > kMaxOpenCaptures) {
    std::erase_if(probe.invocations, [&](const auto& item) { return item.first != capture_id; });
  }
  const std::uint32_t invocation = probe.invocations[capture_id]++;
  std::unique_ptr<ProbeSlot> slot = TakePrepared(probe, tensor);
  if (slot == nullptr) slot = MakeSlot(probe, tensor);
  try {
    if (slot->buffers.pinned == nullptr) {
      slot->buffers =
          capture::AllocateBuffers(slot->registration.payload_bytes, tensor.device_index,
                                   /*with_staging=*/true);
    }
    Complete(probe, *slot, tensor, capture_id, invocation);
    capture::CaptureLeaf(slot.get(), tensor, stream);
    Publish(probe, std::move(slot));
  } catch (...) {
    if (slot == nullptr) throw;
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
  const capture::StreamCapture capture = capture::QueryCapture(stream);
  if (!capture.capturing && probe.options.mode == ProbeMode::kCapture) return;
  const std::lock_guard lock(mutex_);
  AdoptInThisProcess(probe);
  if (probe.closed) return;
  Sweep(/*force=*/false);
  try {
    if (capture.capturing) {
      CaptureOne(probe, tensor, stream, capture.id);
    } else {
      capture::LaunchEager(EagerSlot(probe, tensor, stream), tensor, stream);
    }
  } catch (const Error& error) {
    throw Named(probe, error);
  }
}

void ProbeTable::ObserveHost(ProbeState& probe, const TensorRef& tensor) {
  if (probe.options.mode == ProbeMode::kCapture) return;
  ProbeSlot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    AdoptInThisProcess(probe);
    if (probe.closed) return;
    try {
      slot = EagerSlot(probe, tensor, nullptr);
    } catch (const Error& error) {
      throw Named(probe, error);
    }
    slot->pending.fetch_add(1, std::memory_order_relaxed);
  }
  {
    const std::lock_guard lock(slot->eager_mutex);
    if (slot->writer->Begin()) {
      ring::CopyShared(slot->writer->payload(), tensor.data, slot->writer->payload_bytes());
      slot->writer->Commit(RealtimeNs());
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
  const std::lock_guard lock(mutex_);
  AdoptInThisProcess(probe);
  if (probe.closed) throw Error(ErrorKind::kClosed, "probe '" + probe.name + "' is closed");
  Sweep(/*force=*/false);
  std::unique_ptr<ProbeSlot> slot = MakeSlot(probe, tensor);
  try {
    if (OnGpu(tensor)) {
      slot->buffers =
          capture::AllocateBuffers(slot->registration.payload_bytes, tensor.device_index,
                                   /*with_staging=*/true);
    }
    if (probe.options.compare) {
      ExpectedBlock(probe, ExpectedIndex(probe.name, *probe.options.compare, tensor, 0));
    }
  } catch (...) {
    FreeSlot(*slot);
    throw;
  }
  probe.prepared.push_back(std::move(slot));
}

// --- lifetime ----------------------------------------------------------------------------------

// The probe no longer wants the slot: it is disarmed at once, and freed when nobody can reach it.
void ProbeTable::LetGo(ProbeSlot& slot) {
  slot.armed.store(false, std::memory_order_release);
  slot.probe_gone.store(true, std::memory_order_release);
  Retire(slot);
}

void ProbeTable::Retire(ProbeSlot& slot) {
  if (slot.retired || !slot.reader) return;
  slot.retired = true;
  segment_->Retire(slot.index);
}

void ProbeTable::FreeSlot(ProbeSlot& slot) {
  capture::FreeBuffers(slot.buffers);
  slot.buffers = {};
  if (slot.reader) {
    segment_->Release(slot.index, slot.block);
  } else {
    segment_->Free(slot.block);
  }
  slot.expected.reset();
}

void ProbeTable::Sweep(bool force) {
  // After Finish the process ends: what it leaves behind stays readable.
  if (segment_ == nullptr || finished_) return;
  std::optional<bool> daemon_comes;  // costs a system call: asked once, and only when it matters
  auto wanted_by_daemon = [&](const ProbeSlot& slot) {
    if (!slot.reader || slot.reader->consumed() >= slot.reader->accepted()) return false;
    const char* setting = std::getenv("CGDEBUG");
    const bool expected = (slot.registration.actions & ~layout::kActionRecord) != 0 &&
                          (setting == nullptr || std::strcmp(setting, "0") != 0);
    if (!expected && !daemon_comes) daemon_comes = segment_->gate()->ReaderAlive();
    return expected || *daemon_comes;
  };
  std::erase_if(slots_, [&](const std::unique_ptr<ProbeSlot>& slot) {
    if (slot->in_graph && slot->graph_gone.load(std::memory_order_acquire)) Retire(*slot);
    if (!slot->probe_gone.load(std::memory_order_acquire) || slot->in_use()) return false;
    if (wanted_by_daemon(*slot)) {
      if (!force) return false;
      const std::uint64_t unread = slot->reader->accepted() - slot->reader->consumed();
      ring::Add(segment_->producer()->released_unread, unread);
    }
    FreeSlot(*slot);
    return true;
  });
}

void ProbeTable::Close(ProbeState& probe) {
  const std::lock_guard lock(mutex_);
  AdoptInThisProcess(probe);
  if (probe.closed) return;
  probe.closed = true;
  probes_.erase(probe.id);
  for (ProbeSlot* slot : probe.slots) LetGo(*slot);
  probe.slots.clear();
  for (const auto& slot : probe.prepared) FreeSlot(*slot);
  probe.prepared.clear();
  probe.expected.clear();
  Sweep(/*force=*/false);
}

}  // namespace cgdebug
