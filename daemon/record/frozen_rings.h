// frozen_rings.h: writes the rings that a trigger froze in device memory into a recording.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "daemon/model/control_queue.h"
#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/model/snapshot_store.h"
#include "daemon/pipeline/sink.h"
#include "daemon/record/active_recording.h"
#include "daemon/record/ring_reads.h"

namespace cgdebug::pipeline {

// A thread of its own asks for the values, one freeze after the other, and lets the rings go on.
//
// Thread: any.
class FrozenRings final : public Sink {
 public:
  struct Daemon {  // what it works with; outlives it
    const Registry* registry;
    const SnapshotStore* store;
    RingReads* reads;
    ControlQueue* controls;
    EventLog* events;
  };
  // Tells the job; never blocks.
  using Tell = std::function<void(const SessionPtr& job, const std::string& text)>;
  FrozenRings(const Daemon& daemon, const recording::WriterOptions& options, Tell tell);
  ~FrozenRings() override;  // after the ingest thread has ended
  FrozenRings(const FrozenRings&) = delete;
  FrozenRings& operator=(const FrozenRings&) = delete;

  void Consume(const Delivery&, SlotFeedback&) override {}
  void Froze(const RingFreeze& freeze) override;

 private:
  void Run();
  std::string Write(const RingFreeze& freeze);

  const Daemon daemon_;
  const recording::WriterOptions options_;
  const Tell tell_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<RingFreeze> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cgdebug::pipeline
