// The table's lifetimes: of slots, of probes, and of the table itself over a fork.
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <unordered_map>

#include "libprobe/capture/cuda_lane.h"
#include "libprobe/probe_table.h"
#include "libprobe/ring/reclaim.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/shared_mark.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

// What closed probes wrote is kept for a daemon that may still come, but not without limit: a job
// that makes and closes probes all the time would fill /dev/shm, which others need as well.
constexpr std::uint64_t kMaxUnreadBytes = 256ull << 20;

// The records of a graph that is gone can still be asked for. Kept are those of the newest such
// graph of each probe, and older ones within these limits, because a job may capture again and
// again.
constexpr std::size_t kMaxRetiredSlots = 64;  // per probe
constexpr std::uint64_t kMaxRetiredBytes = 256ull << 20;

constexpr std::uint64_t kRoomBeside = 1u << 20;  // for a control file and an extent's header
constexpr std::chrono::milliseconds kRoomPatience{500};

void FinishAtExit() {
  try {
    (void)Finish(std::chrono::seconds(2));
  } catch (const std::bad_alloc&) {
    std::fputs("cgdebug: no memory is left to end this job's segment in order\n", stderr);
  }
}

bool Unread(const ProbeSlot& slot) {
  return slot.reader && slot.reader->consumed() < slot.reader->accepted();
}

void Add(const SlotStatus& from, SlotStatus* to) {
  to->replays += from.replays;
  to->accepted += from.accepted;
  to->consumed += from.consumed;
  to->lost += from.lost;
  to->overwrote_unread += from.overwrote_unread;
  to->waits += from.waits;
  to->wait_ns += from.wait_ns;
  to->suppressed += from.suppressed;
  to->verdict.compared += from.verdict.compared;
  to->verdict.mismatched += from.verdict.mismatched;
  to->verdict.lost += from.verdict.lost;
}

bool Reachable(const ProbeSlot& slot) {
  return !slot.probe_gone.load(std::memory_order_acquire) || slot.in_use();
}

}  // namespace

// --- the table ---------------------------------------------------------------------------------

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

// The child's probes keep their names and ids; segment, slots and CUDA memory belong to the parent.
void ProbeTable::AtForkChild() {
  ProbeTable* parent = instance_;
  instance_ = new ProbeTable;
  instance_->parent_ = parent;
  instance_->probes_ = parent->probes_;
  instance_->sites_ = parent->sites_;
  instance_->made_ = parent->made_;
  instance_->next_probe_id_ = parent->next_probe_id_;
  instance_->step_ = parent->step_.load();
  instance_->site_provider_ = parent->site_provider_.load();
  parent->mutex_.unlock();
}

void ProbeTable::AdoptInThisProcess(ProbeState& probe) {
  if (probe.owner == this) return;
  if (probe.owner != nullptr) {
    probe.slots.clear();
    probe.invocations.clear();
    for (auto& slot : probe.prepared) (void)slot.release();  // the parent's memory: do not free it
    probe.prepared.clear();
    for (auto& block : probe.expected) (void)new std::shared_ptr<ring::Block>(std::move(block));
    probe.expected.clear();
    probe.evicted.clear();
  }
  probe.owner = this;
}

// --- slots -------------------------------------------------------------------------------------

// Disarms a slot that its probe no longer wants; the slot is freed when nothing can reach it.
void ProbeTable::LetGo(ProbeSlot& slot) {
  slot.armed.store(false, std::memory_order_release);
  if (slot.block.data != nullptr) {  // where the kernels look
    auto* head = reinterpret_cast<layout::SlotHead*>(slot.block.data + layout::kSlotHeadOffset);
    ring::StoreRelaxed(head->disarmed, std::uint64_t{1});
  }
  slot.probe_gone.store(true, std::memory_order_release);
  Retire(slot);
}

void ProbeTable::Evict(ProbeState& probe, ProbeSlot& slot) {
  std::erase(probe.slots, &slot);
  slot.evicted = true;
  LetGo(slot);
}

void ProbeTable::EvictOldRetired(bool all) {
  struct Kept {
    std::shared_ptr<ProbeState> probe;
    std::uint64_t newest_capture = 0;
    std::size_t slots = 0;
  };
  std::unordered_map<std::uint64_t, Kept> probes;
  std::uint64_t bytes = 0;
  for (auto it = slots_.rbegin(); it != slots_.rend(); ++it) {  // newest first
    ProbeSlot& slot = **it;
    if (!slot.retired || slot.probe_gone.load(std::memory_order_relaxed)) continue;
    const auto [found, is_newest] = probes.try_emplace(slot.probe_id);
    Kept& kept = found->second;
    if (is_newest) {
      const auto probe = probes_.find(slot.probe_id);
      if (probe != probes_.end()) kept.probe = probe->second.lock();
      kept.newest_capture = slot.registration.graph_id;
    }
    if (kept.probe == nullptr) continue;  // it is being closed
    const bool fits = slot.registration.graph_id == kept.newest_capture ||
                      (kept.slots < kMaxRetiredSlots && bytes < kMaxRetiredBytes);
    if (all || !fits) {
      Evict(*kept.probe, slot);
    } else {
      ++kept.slots;
      bytes += slot.block.bytes;
    }
  }
}

// Keeps what a comparison found, or that none was made, when its slot is freed.
void ProbeTable::KeepVerdict(const ProbeSlot& slot) {
  if (!slot.evicted || (slot.registration.actions & layout::kActionCompare) == 0) return;
  const auto found = probes_.find(slot.probe_id);
  const auto probe = found == probes_.end() ? nullptr : found->second.lock();
  if (probe == nullptr) return;
  SlotStatus status = StatusOf(slot);
  status.lost += status.accepted - std::min(status.accepted, status.consumed);
  status.consumed = status.accepted;
  const auto same = std::find_if(
      probe->evicted.begin(), probe->evicted.end(),
      [&](const SlotStatus& other) { return other.verdict.state == status.verdict.state; });
  if (same == probe->evicted.end()) {
    probe->evicted.push_back(std::move(status));
  } else {
    Add(status, &*same);
  }
}

void ProbeTable::Retire(ProbeSlot& slot) {
  if (slot.retired || !slot.reader) return;
  slot.retired = true;
  segment_->Retire(slot.index);
}

ProbeTable::Trimmer::~Trimmer() {
  if (wanted_ && table_.has_gpu_memory_.load(std::memory_order_relaxed)) capture::TrimBuffers();
}

void ProbeTable::FreeSlot(ProbeSlot& slot) {
  if (slot.reader) KeepVerdict(slot);
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
  // After Finish() the process ends, and what it leaves behind stays readable.
  if (segment_ == nullptr || finished_) return;
  bool graphs_died = force;
  for (const auto& slot : slots_) {
    if (!slot->in_graph || !slot->graph_gone.load(std::memory_order_acquire)) continue;
    graphs_died = graphs_died || !slot->retired;
    Retire(*slot);
    capture::FreeBuffers(slot->buffers);  // the graph's nodes run no more
    slot->buffers = {};
  }
  if (graphs_died) EvictOldRetired(/*all=*/force);
  std::uint64_t unread_bytes = 0;
  const ProbeSlot* newest_unread = nullptr;
  std::erase_if(slots_, [&](const std::unique_ptr<ProbeSlot>& slot) {
    if (Reachable(*slot)) return false;
    if (Unread(*slot)) {
      unread_bytes += slot->block.bytes;
      newest_unread = slot.get();
      return false;
    }
    FreeSlot(*slot);
    return true;
  });
  if (newest_unread == nullptr) return;
  const bool alive = segment_->gate()->ReaderAlive();
  const bool may_come = !DaemonForbidden();
  // It may not have found this segment yet.
  const bool runs = !alive && may_come && ring::IsMarked(ring::MarkKind::kReader);
  std::erase_if(slots_, [&](const std::unique_ptr<ProbeSlot>& slot) {  // in order of creation
    if (Reachable(*slot) || !Unread(*slot)) return false;
    const bool awaited = alive || runs || (may_come && NeedsDaemon(*slot));
    const bool affordable = alive || unread_bytes <= kMaxUnreadBytes || slot.get() == newest_unread;
    if (awaited && affordable && !force) return false;
    if (awaited || slot->evicted) {
      const std::uint64_t unread = slot->reader->accepted() - slot->reader->consumed();
      ring::Add(segment_->producer()->released_unread, unread);
    }
    unread_bytes -= std::min(unread_bytes, slot->block.bytes);
    FreeSlot(*slot);
    return true;
  });
}

// Removes what dead jobs left, oldest first: first what no daemon reads, then what the daemon
// keeps.
void ProbeTable::MakeRoom(std::uint64_t bytes) {
  bytes += kRoomBeside;
  const std::string own = segment_ == nullptr ? "" : segment_->name();
  ring::EvictDeadSegments(bytes, [&own](const std::string& name) { return name == own; });
  if (segment_ == nullptr || ring::GetShmSpace().free_bytes >= static_cast<double>(bytes)) return;
  segment_->AskForRoom(bytes, kRoomPatience);
}

void ProbeTable::Close(ProbeState& probe) {
  const Trimmer trimmer(*this);
  const std::lock_guard lock(mutex_);
  AdoptInThisProcess(probe);
  if (probe.closed) return;
  probe.closed = true;
  probes_.erase(probe.id);
  sites_.erase(probe.site);
  for (ProbeSlot* slot : probe.slots) LetGo(*slot);
  probe.slots.clear();
  for (const auto& slot : probe.prepared) FreeSlot(*slot);
  probe.prepared.clear();
  probe.expected.clear();
  Sweep(/*force=*/false);
}

}  // namespace cgdebug
