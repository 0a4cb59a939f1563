// Observe() and Prepare() of the public header.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "libprobe/capture/lane/cuda_lane.h"
#include "libprobe/capture/lane/direct_lane.h"
#include "libprobe/host_stats.h"
#include "libprobe/probe_table.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/slots/registration.h"
#include "proto/layout/realtime.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

constexpr std::size_t kMaxOpenCaptures = 16;

// Atomic: any thread sets it, and calls that look at nothing must not wait for a lock.
std::atomic<bool> sees_eager{true};

bool IsLeftOut(const ProbeState& probe) {
  return probe.options.mode == ProbeMode::kCapture || !sees_eager;
}

// The text of an error without the name that it begins with.
std::string_view WithoutName(const std::string& name, std::string_view text) {
  const std::string prefix = "probe '" + name + "': ";
  if (text.substr(0, prefix.size()) == prefix) text.remove_prefix(prefix.size());
  return text;
}

// Where the probe is called. Releases `lock` meanwhile: finding out may take the interpreter's
// lock, whose owner may wait for this one. The probe may be closed afterwards.
std::string CallSite(ProbeTable& table, ProbeState& probe, ProbeTable::Lock* lock) {
  const SiteProvider provider = table.site_provider.load();
  if (provider == nullptr) return {};
  const ProbeTable::Unlocked unlocked(&table, &probe, lock);
  return provider();
}

// What the probe sees of a tensor: all of it, or its part.
class SeenTensor {
 public:
  // Fails: throws ProbeError.
  SeenTensor(ProbeState& probe, const TensorRef& whole) : whole_(whole) {
    if (!probe.part) return;
    try {
      part_ = TakePart(probe.name, *probe.part, whole);
    } catch (const ProbeError& error) {
      const ProbeTable::Lock lock = ProbeTable::Instance().Acquire();
      throw probe.Refuse(error);
    }
  }
  const TensorRef& get() const { return part_ ? *part_ : whole_; }

 private:
  const TensorRef& whole_;
  std::optional<TensorRef> part_;
};

// Buffers that go back unless a slot takes them.
struct SpareBuffers {
  ~SpareBuffers() { capture::FreeBuffers(buffers); }
  capture::Buffers buffers;
};

// The call that a look of the probe belongs to; number 0: to none, and it counts its own.
EagerCall CallOf(ProbeTable& table, ProbeState& probe, bool is_on_gpu) {
  const auto is_main_thread = [] { return gettid() == getpid(); };  // two calls of the system
  if (probe.sees_modules && !table.calls.HasCall()) {
    table.calls.CallModule(table.step.get(), is_main_thread());
  }
  if (probe.follows_calls && is_on_gpu) return table.calls.LatestOfJob();
  if (probe.follows_calls || table.calls.IsRunning()) return table.calls.Latest();
  if (probe.counts_own) return {};
  const EagerCall call = table.calls.Around(table.step.get(), is_main_thread());
  probe.counts_own = call.number == 0;
  return call;
}

ProbeSlot* FindEagerSlot(const ProbeState& probe, const TensorRef& tensor, void* stream,
                         std::uint32_t thread) {
  for (ProbeSlot* slot : probe.slots) {
    if (slot->life.held_by_graph() || slot->eager_stream != stream ||
        slot->registration.thread != thread) {
      continue;
    }
    if (SameTensor(slot->registration, tensor)) return slot;
  }
  return nullptr;
}

// What an eager call wants to show, as a number. Two tensors of one number are equal for all that
// follows from it.
std::size_t KeyOf(const TensorRef& tensor) {
  std::size_t key =
      static_cast<std::size_t>(tensor.dtype) << 8 ^ static_cast<std::size_t>(tensor.device_index);
  for (const std::int64_t size : tensor.shape) {
    key = (key ^ static_cast<std::size_t>(size)) * 0x9e3779b97f4a7c15;
    key ^= key >> 32;
  }
  return key;
}

// Calls `make`. If there is no room in /dev/shm, asks for it and tries once more. Releases `lock`
// while it waits, because other threads must not.
template <typename Make>
auto WithRoom(ProbeTable& table, ProbeState& probe, ProbeTable::Lock* lock, Make make) {
  try {
    return make();
  } catch (const ProbeError& error) {
    if (error.kind() != ErrorKind::kNoSpace) throw;
    const auto room = table.slots.RoomToAskFor();
    if (!room) throw;
    const ProbeTable::Unlocked unlocked(&table, &probe, lock);
    AskForRoom(table.segment.writer(), *room);
  }
  return make();
}

// nullptr if the probe was closed, or if there was no room a moment ago: then the call is counted
// as not seen. Releases `lock` meanwhile to allocate memory. Fails: throws ProbeError; kNoSpace if
// the job is to go on without this call being seen.
ProbeSlot* EagerSlot(ProbeTable& table, ProbeState& probe, const TensorRef& tensor, void* stream,
                     std::uint32_t thread, ProbeTable::Lock* lock) {
  ProbeSlot* found = FindEagerSlot(probe, tensor, stream, thread);
  const std::size_t key = found == nullptr ? KeyOf(tensor) : 0;
  SlotMaker::Call call;
  call.thread = thread;
  SpareBuffers spare;
  if (found == nullptr) {
    if (probe.refusals.Holds(key, Refusals::Clock::now(), table.slots.releases())) {
      table.not_seen.Count(probe.name, WithoutName(probe.name, probe.last_error),
                           /*is_captured=*/false);
      return nullptr;
    }
    call.site = CallSite(table, probe, lock);
    if (tensor.device_type == DeviceType::kCuda) {
      const std::uint64_t bytes = CheckTensor(probe.name, tensor);
      const capture::Buffers::Kind kind = SlotMaker::BuffersForEager(probe, tensor);
      // The device may have to get idle for it, and other threads must not wait for that.
      const ProbeTable::Unlocked unlocked(&table, &probe, lock);
      spare.buffers = capture::AllocateBuffers(bytes, tensor.device_index, kind);
    }
    if (probe.closed) return nullptr;
    found = FindEagerSlot(probe, tensor, stream, thread);
  }
  if (found != nullptr) {
    table.slots.Touch(probe, *found);
    return found;
  }
  std::unique_ptr<ProbeSlot> slot;
  try {
    slot = WithRoom(table, probe, lock,
                    [&] { return table.maker.ForEager(probe, tensor, stream, spare.buffers); });
    if (probe.closed) {
      table.slots.Discard(std::move(slot));
      return nullptr;
    }
    slot->buffers = std::exchange(spare.buffers, {});
    table.maker.Complete(probe, *slot, tensor, call);
    ProbeSlot* const published = table.slots.Publish(probe, slot);
    table.slots.Touch(probe, *published);
    probe.refusals.Forget(key);
    return published;
  } catch (const ProbeError& error) {
    if (slot != nullptr) table.slots.Discard(std::move(slot));
    if (error.kind() == ErrorKind::kNoSpace)
      probe.refusals.Add(key, Refusals::Clock::now(), table.slots.releases());
    throw;
  } catch (...) {
    if (slot != nullptr) table.slots.Discard(std::move(slot));
    throw;
  }
}

void CaptureOne(ProbeTable& table, ProbeState& probe, const TensorRef& tensor, void* stream,
                SlotMaker::Call call, ProbeTable::Lock* lock) {
  std::unique_ptr<ProbeSlot> slot =
      WithRoom(table, probe, lock, [&] { return table.maker.ForCapture(probe, tensor); });
  if (probe.closed) return table.slots.Discard(std::move(slot));
  if (probe.invocations.size() > kMaxOpenCaptures) {
    std::erase_if(probe.invocations,
                  [&](const auto& item) { return item.first != call.place.graph_id; });
  }
  call.invocation = probe.invocations[call.place.graph_id]++;
  try {
    table.maker.Complete(probe, *slot, tensor, call);
    if (slot->buffers.kind == capture::Buffers::Kind::kDirect) {
      capture::DirectLane::On(tensor.device_index)
          .Capture(slot.get(), *table.segment.writer(), tensor, stream);
    } else {
      capture::CaptureLeaf(slot.get(), tensor, stream);
    }
    table.slots.Publish(probe, slot);
  } catch (...) {
    table.slots.Discard(std::move(slot));
    throw;
  }
}

void ObserveCuda(ProbeState& probe, const TensorRef& whole, void* stream, bool* is_capturing) {
  ProbeTable& table = ProbeTable::Instance();
  capture::StreamCapture capture;
  try {
    capture = capture::QueryCapture(stream);
  } catch (const ProbeError& error) {
    const ProbeTable::Lock lock = table.Acquire();
    throw probe.Refuse(error);
  }
  *is_capturing = capture.capturing;
  if (!capture.capturing && IsLeftOut(probe)) return;
  const SeenTensor seen(probe, whole);
  const TensorRef& tensor = seen.get();
  table.has_gpu_memory.store(true, std::memory_order_relaxed);
  const ProbeTable::Trimmer trimmer(table, capture.capturing);
  ProbeTable::Lock lock = table.Acquire(probe);
  if (probe.closed) return;
  try {
    if (capture.capturing) {
      std::string site = CallSite(table, probe, &lock);
      if (probe.closed) return;
      CaptureOne(table, probe, tensor, stream,
                 {.place = capture::PlaceOf(stream, capture.id, tensor.device_index),
                  .site = std::move(site)},
                 &lock);
      return;
    }
    const EagerCall call = CallOf(table, probe, /*is_on_gpu=*/true);
    ProbeSlot* const slot = EagerSlot(table, probe, tensor, stream, call.thread, &lock);
    if (slot == nullptr) return;
    if (slot->buffers.kind == capture::Buffers::Kind::kEagerStats) {
      capture::DirectLane::On(tensor.device_index)
          .LaunchEagerStats(slot, *table.segment.writer(), tensor, call.number, call.step, stream);
    } else {
      capture::LaunchEager(slot, tensor, call.number, call.step, stream);
    }
  } catch (const ProbeError& error) {
    throw probe.Refuse(error);
  }
}

// The slot of another probe that this call is compared with; null if there is none.
ProbeSlot* OtherSlot(const ProbeState& probe, const ProbeSlot& slot, const TensorRef& tensor) {
  if ((slot.registration.flags & layout::kCompareProbe) == 0) return nullptr;
  ProbeSlot* other = FindReference(probe, slot, tensor);
  if (other->registration.order == slot.registration.reference_order) return other;
  throw ProbeError(ErrorKind::kUnsupported,
                   "the probe that it is compared with has seen too many shapes to keep this one");
}

std::uint64_t NewestKept(ProbeSlot& slot) {
  const std::lock_guard lock(slot.eager_mutex);
  return slot.writer->NewestKept();
}

// Into shared memory.
void CopyElements(std::byte* to, const TensorRef& tensor, std::uint64_t bytes) {
  if (tensor.element_stride == 1) return ring::CopyShared(to, tensor.data, bytes);
  const std::uint64_t size = layout::DtypeBytes(tensor.dtype);
  const auto* from = static_cast<const std::byte*>(tensor.data);
  for (std::uint64_t at = 0; at < bytes; at += size) {
    ring::CopyShared(to + at, from + at * tensor.element_stride, size);
  }
}

std::uint64_t ElementCount(const TensorRef& tensor) {
  std::uint64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

void ObserveHost(ProbeState& probe, const TensorRef& whole) {
  if (IsLeftOut(probe)) return;
  const SeenTensor seen(probe, whole);
  const TensorRef& tensor = seen.get();
  ProbeTable& table = ProbeTable::Instance();
  EagerCall call;
  ProbeSlot* slot = nullptr;
  ProbeSlot* other = nullptr;
  {
    ProbeTable::Lock lock = table.Acquire(probe);
    if (probe.closed) return;
    call = CallOf(table, probe, /*is_on_gpu=*/false);
    try {
      slot = EagerSlot(table, probe, tensor, nullptr, call.thread, &lock);
    } catch (const ProbeError& error) {
      throw probe.Refuse(error);
    }
    if (slot == nullptr) return;
    try {
      other = OtherSlot(probe, *slot, tensor);
    } catch (const ProbeError& error) {
      throw probe.Refuse(error);
    }
    slot->life.Pin();
    if (other != nullptr) other->life.Pin();
  }
  {
    const std::lock_guard lock(slot->eager_mutex);
    const std::uint64_t serial = slot->TakeSerial();
    if (call.number == 0 ? slot->writer->Begin(serial)
                         : slot->writer->BeginInCall(serial, call.number)) {
      slot->writer->SetReference(other == nullptr ? 0 : NewestKept(*other));
      if ((slot->registration.flags & layout::kSlotHoldsStats) != 0) {
        const layout::DeviceStats stats =
            ComputeHostStats(tensor.data, tensor.dtype, ElementCount(tensor));
        ring::CopyShared(slot->writer->payload(), &stats, sizeof(stats));
      } else {
        CopyElements(slot->writer->payload(), tensor, slot->writer->payload_bytes());
      }
      slot->writer->Commit(layout::RealtimeNs(),
                           call.number == 0 ? slot->writer->step() : call.step);
    }
  }
  slot->life.Unpin();
  if (other != nullptr) other->life.Unpin();
}

}  // namespace

bool SetSeesEager(bool sees) noexcept { return sees_eager.exchange(sees); }

void Observe(ProbeState& probe, const TensorRef& tensor, void* stream) {
  bool is_capturing = false;
  const auto count = [&](const std::exception& error) {  // the job may catch it and go on
    CountRefused(probe.name, WithoutName(probe.name, error.what()), is_capturing);
  };
  try {
    if (tensor.device_type == DeviceType::kCuda) {
      ObserveCuda(probe, tensor, stream, &is_capturing);
    } else {
      ObserveHost(probe, tensor);
    }
  } catch (const ProbeError& error) {
    if (error.kind() == ErrorKind::kNoSpace && !is_capturing) {
      // A new shape may come at any step, and the job has to go on.
      CountNotSeen(probe.name, WithoutName(probe.name, error.what()));
      return;
    }
    // What the caller did wrong it is told, and nothing was wanted that could have been seen.
    if (error.kind() == ErrorKind::kNoSpace || error.kind() == ErrorKind::kSystem) count(error);
    throw;
  } catch (const std::exception& error) {
    count(error);
    throw;
  }
}

void Prepare(ProbeState& probe, const TensorRef& whole) {
  const SeenTensor seen(probe, whole);
  const TensorRef& tensor = seen.get();
  ProbeTable& table = ProbeTable::Instance();
  if (tensor.device_type == DeviceType::kCuda) {
    table.has_gpu_memory.store(true, std::memory_order_relaxed);
  }
  const ProbeTable::Trimmer trimmer(table);
  const ProbeTable::Lock lock = table.Acquire(probe);
  if (probe.closed) throw ProbeError(ErrorKind::kClosed, "probe '" + probe.name + "' is closed");
  try {
    table.maker.Prepare(probe, tensor);
  } catch (const ProbeError& error) {
    throw probe.Refuse(error);
  }
}

std::optional<NeededRange> NeededFor(const ProbeState& probe,
                                     const std::vector<std::int64_t>& shape) {
  return probe.part ? RangeOf(*probe.part, shape) : std::nullopt;
}

void SetSiteProvider(SiteProvider provider) {
  ProbeTable::Instance().site_provider.store(provider);
}

}  // namespace cgdebug
