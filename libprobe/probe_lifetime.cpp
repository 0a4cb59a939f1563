// The table's lifetimes: of slots, of probes, and of the table itself over a fork.
#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "libprobe/capture/cuda_lane.h"
#include "libprobe/probe_table.h"
#include "libprobe/ring/shared_copy.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

// What closed probes wrote is kept for a daemon that may still come, but not without end: a job
// that makes and closes probes all the time would fill /dev/shm, which others need as well.
constexpr std::uint64_t kMaxUnreadBytes = 256ull << 20;

void FinishAtExit() { (void)Finish(std::chrono::seconds(2)); }

bool Unread(const ProbeSlot& slot) {
  return slot.reader && slot.reader->consumed() < slot.reader->accepted();
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

// The child's probes keep their names and ids; segment, slots and CUDA memory are the parent's.
void ProbeTable::AtForkChild() {
  ProbeTable* parent = instance_;
  instance_ = new ProbeTable;
  instance_->parent_ = parent;
  instance_->probes_ = parent->probes_;
  instance_->next_probe_id_ = parent->next_probe_id_;
  instance_->step_ = parent->step_;
  parent->mutex_.unlock();
}

void ProbeTable::AdoptInThisProcess(ProbeState& probe) {
  if (probe.owner == this) return;
  if (probe.owner != nullptr) {
    probe.slots.clear();
    probe.invocations.clear();
    for (auto& slot : probe.prepared) (void)slot.release();  // the parent's memory, not to be freed
    probe.prepared.clear();
    for (auto& block : probe.expected) (void)new std::shared_ptr<ring::Block>(std::move(block));
    probe.expected.clear();
  }
  probe.owner = this;
}

// --- slots -------------------------------------------------------------------------------------

// The probe no longer wants the slot: it is disarmed at once, and freed when nobody can reach it.
void ProbeTable::LetGo(ProbeSlot& slot) {
  slot.armed.store(false, std::memory_order_release);
  if (slot.block.data != nullptr) {  // for the kernels, which look there
    auto* head = reinterpret_cast<layout::SlotHead*>(slot.block.data + layout::kSlotHeadOffset);
    ring::StoreRelaxed(head->disarmed, std::uint64_t{1});
  }
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
  std::uint64_t unread_bytes = 0;
  const ProbeSlot* newest_unread = nullptr;
  std::erase_if(slots_, [&](const std::unique_ptr<ProbeSlot>& slot) {
    if (slot->in_graph && slot->graph_gone.load(std::memory_order_acquire)) Retire(*slot);
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
  std::erase_if(slots_, [&](const std::unique_ptr<ProbeSlot>& slot) {  // in the order of making
    if (Reachable(*slot) || !Unread(*slot)) return false;
    const bool awaited = alive || (may_come && NeedsDaemon(*slot));
    const bool affordable = alive || unread_bytes <= kMaxUnreadBytes || slot.get() == newest_unread;
    if (awaited && affordable && !force) return false;
    if (awaited) {
      const std::uint64_t unread = slot->reader->accepted() - slot->reader->consumed();
      ring::Add(segment_->producer()->released_unread, unread);
    }
    unread_bytes -= std::min(unread_bytes, slot->block.bytes);
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
