// current_step.h: the step number that the job's CPU has reached.
#pragma once

#include <atomic>
#include <cstdint>

#include "libprobe/ring/shared_copy.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug {

// Lock-free: a training loop calls Set() in every step, and must not wait for a thread that
// captures or asks for the status.
//
// Thread: Set() and get() any; the rest with the probe table's lock.
class CurrentStep {
 public:
  void Set(std::int64_t step) {
    step_.store(step);
    layout::ProducerLine* producer = producer_.load();
    if (producer != nullptr) ring::StoreRelaxed(producer->step, step);
  }
  // From here on the segment shows the step. A Set() that runs meanwhile either is seen here or
  // finds `producer` itself.
  void ShowIn(layout::ProducerLine* producer) {
    producer_.store(producer);
    for (std::int64_t step = step_.load();; step = step_.load()) {
      ring::StoreRelaxed(producer->step, step);
      if (step == step_.load()) break;
    }
  }
  std::int64_t get() const { return step_.load(); }
  // Takes the number over, but not the segment, which is the other process's.
  void InheritFrom(const CurrentStep& parent) { step_.store(parent.step_.load()); }

 private:
  std::atomic<std::int64_t> step_{-1};
  std::atomic<layout::ProducerLine*> producer_{nullptr};
};

}  // namespace cgdebug
