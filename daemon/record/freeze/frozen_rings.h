// frozen_rings.h: writes the rings that a trigger stopped in device memory into a recording.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/model/control_queue.h"
#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/model/snapshot_store.h"
#include "daemon/pipeline/sink.h"
#include "daemon/record/active_recording.h"
#include "daemon/record/ring_reads.h"

namespace cgdebug::pipeline {

// A thread of its own asks for the values, one freeze after the other, and lets the rings go on. If
// a trigger holds on one device, the rings of the job's other devices stop as well, each at its own
// replay, and the recording has all of them. A failed comparison stops them if a probe of the job
// has the trigger kMismatch.
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
  void Found(const Finding& finding) override;
  void Froze(const RingFreeze& freeze) override;

 private:
  // Why rings stop: a trigger held on a device, or a comparison failed.
  struct Cause {
    RingFreeze freeze;  // of a comparison: only its slot and replay
    bool is_comparison = false;
  };
  using Freezes = std::vector<RingFreeze>;
  struct Stopped {
    Freezes freezes;                  // with the cause's own
    std::set<std::uint32_t> running;  // devices that did not stop in time
  };
  void Run();
  void Deal(const Cause& cause);
  bool IsWanted(const Cause& cause, const std::vector<SlotRecord>& slots);
  // Stops the rings of all devices that `slots` use.
  Stopped StopAll(const Cause& cause, const std::vector<SlotRecord>& slots);
  static std::string WhyText(const Cause& cause, const Stopped& stopped);
  std::string Write(const Cause& cause, const Stopped& stopped, std::vector<SlotRecord> slots);
  void AwaitRest(const Freezes& freezes, std::vector<SlotRecord>* slots);
  // What the registry knows of them now. Those that it has forgotten keep what it knew.
  void Refresh(std::vector<SlotRecord>* slots) const;
  void GoOn(const Freezes& freezes);

  const Daemon daemon_;
  const recording::WriterOptions options_;
  const Tell tell_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Cause> waiting_;
  // How many failed comparisons of each job were recorded.
  std::map<std::weak_ptr<const SessionIdentity>, std::uint64_t, std::owner_less<>> comparisons_;
  // The slots whose trigger, set by a client, was ended because it had held.
  std::set<std::weak_ptr<const SlotIdentity>, std::owner_less<>> ended_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cgdebug::pipeline
