// control_queue.h: carries clients' changes from serve to ingest, which alone writes into segments.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/model/finding.h"
#include "daemon/model/identity.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::pipeline {

struct ControlChange {
  SlotPtr slot;
  layout::SlotControl control;
  bool from_next = false;  // `until` counts replays from the next one on
  // If set, changes only this, as recordings do when they begin and end; `control` is ignored.
  std::optional<layout::Lossless> lossless = std::nullopt;
  bool wants_values = false;  // with `lossless`: a recording wants the values of the slot
};

// The rings of a job in the memory of one device stop, or go on.
struct RingSwitch {
  SessionPtr session;
  std::uint32_t device = 0;
  std::uint64_t stop = 0;    // stop; a number that was not used before. Else they go on
  std::uint64_t thawed = 0;  // serial of the freeze that is over; 0 = only `stop` is withdrawn
};

// What a job is told of a finding that its own rings do not show.
struct JobNotice {
  Finding finding;
  std::string text;  // SentenceOf()
};

// Thread: any.
class ControlQueue {
 public:
  void Push(std::vector<ControlChange> changes) {
    const std::lock_guard lock(mutex_);
    for (ControlChange& change : changes) changes_.push_back(std::move(change));
  }
  std::vector<ControlChange> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(changes_, {});
  }

  void Switch(RingSwitch rings) {
    const std::lock_guard lock(mutex_);
    switches_.push_back(std::move(rings));
  }
  std::vector<RingSwitch> TakeSwitches() {
    const std::lock_guard lock(mutex_);
    return std::exchange(switches_, {});
  }

  void Tell(JobNotice notice) {
    const std::lock_guard lock(mutex_);
    notices_.push_back(std::move(notice));
  }
  std::vector<JobNotice> TakeNotices() {
    const std::lock_guard lock(mutex_);
    return std::exchange(notices_, {});
  }

  // Asks ingest to forget every dead job and to give its shared memory back.
  void Prune() {
    const std::lock_guard lock(mutex_);
    prune_ = true;
  }
  bool TakePrune() {
    const std::lock_guard lock(mutex_);
    return std::exchange(prune_, false);
  }

 private:
  std::mutex mutex_;
  std::vector<ControlChange> changes_;
  std::vector<RingSwitch> switches_;
  std::vector<JobNotice> notices_;
  bool prune_ = false;
};

}  // namespace cgdebug::pipeline
