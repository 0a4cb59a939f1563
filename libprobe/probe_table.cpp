#include "libprobe/probe_table.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include "libprobe/capture/lane/cuda_lane.h"

namespace cgdebug {
namespace {

void FinishAtExit() {
  try {
    (void)Finish(std::chrono::seconds(2));
  } catch (const std::bad_alloc&) {
    std::fputs("cgdebug: no memory is left to end this job's segment in order\n", stderr);
  }
}

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

// The child's probes keep their names and ids; segment, slots and CUDA memory belong to the parent.
void ProbeTable::AtForkChild() {
  ProbeTable* parent = instance_;
  instance_ = new ProbeTable;
  instance_->parent_ = parent;
  instance_->probes = parent->probes;
  instance_->step.InheritFrom(parent->step);
  instance_->site_provider = parent->site_provider.load();
  parent->mutex_.unlock();
}

ProbeTable::Trimmer::~Trimmer() {
  if (wanted_ && table_.has_gpu_memory.load(std::memory_order_relaxed)) capture::TrimBuffers();
}

void ProbeTable::Adopt(ProbeState& probe) {
  if (probe.owner == this) return;
  if (probe.owner != nullptr) {
    probe.slots.clear();
    probe.newest_eager = nullptr;
    probe.refusals.Clear();
    probe.invocations.clear();
    for (auto& slot : probe.prepared) (void)slot.release();  // the parent's memory: do not free it
    probe.prepared.clear();
    for (auto& [key, block] : probe.expected) {
      (void)new std::shared_ptr<ring::Block>(std::move(block));
    }
    probe.expected.clear();
    probe.evicted.clear();
  }
  probe.owner = this;
}

}  // namespace cgdebug
