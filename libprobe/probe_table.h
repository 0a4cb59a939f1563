// probe_table.h: the one table of a process: its lock, what the lock guards, and what a fork does.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>

#include "cgdebug/probe.h"
#include "libprobe/eager_calls.h"
#include "libprobe/op_log_pages.h"
#include "libprobe/slots/captured_graphs.h"
#include "libprobe/slots/current_step.h"
#include "libprobe/slots/not_seen.h"
#include "libprobe/slots/probe_registry.h"
#include "libprobe/slots/slot_maker.h"
#include "libprobe/slots/store/process_segment.h"
#include "libprobe/slots/store/slot_store.h"

namespace cgdebug {

class EagerRows;

// Thread:   any. The lock is never taken on the replay path, by SetStep(), or while payloads are
//           copied.
// Lifetime: never destroyed: driver threads may call back after static objects are gone. A forked
//           child gets a new table and leaves its parent's segment alone.
class ProbeTable {
 public:
  using Lock = std::unique_lock<std::mutex>;

  static ProbeTable& Instance();

  Lock Acquire() { return Lock(mutex_); }
  // Takes the lock for a call on `probe`, which this process may have inherited by a fork.
  Lock Acquire(ProbeState& probe) {
    Lock lock(mutex_);
    Adopt(probe);
    return lock;
  }
  // Releases a lock that Acquire(probe) gave, while it lives.
  class Unlocked {
   public:
    Unlocked(ProbeTable* table, ProbeState* probe, Lock* lock)
        : table_(table), probe_(probe), lock_(lock) {
      lock_->unlock();
    }
    ~Unlocked() {
      lock_->lock();
      table_->Adopt(*probe_);
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    ProbeTable* table_;
    ProbeState* probe_;
    Lock* lock_;
  };
  // Made before the lock is taken: when it has been given back, frees memory of slots that are
  // gone. That may wait for the device, so no eager call does it.
  class Trimmer {
   public:
    explicit Trimmer(const ProbeTable& table, bool wanted = true)
        : table_(table), wanted_(wanted) {}
    ~Trimmer();
    Trimmer(const Trimmer&) = delete;
    Trimmer& operator=(const Trimmer&) = delete;

   private:
    const ProbeTable& table_;
    bool wanted_;
  };

  // Guarded by the lock.
  ProbeRegistry probes;
  CapturedGraphs graphs;
  ProcessSegment segment{&step, &not_seen};
  SlotStore slots{&probes, &segment, &not_seen};
  SlotMaker maker{&segment, &slots, &graphs};
  OpLogPages op_logs{&probes, &segment, &slots, &maker};
  std::set<EagerRows*> rows_to_send;  // those that no ring has yet
  bool sends_late_rows = false;       // whether a thread does (eager_rows.cpp)
  bool asked_for_daemon = false;

  // These need no lock.
  CurrentStep step;
  EagerCalls calls;
  NotSeen not_seen;
  std::atomic<SiteProvider> site_provider{nullptr};
  std::atomic<bool> has_gpu_memory{false};  // not what a parent had before it forked
  // The census's count of replays of graphs that it does not know; null before there is one.
  std::atomic<std::uint64_t*> unlisted_replays{nullptr};

 private:
  ProbeTable() = default;
  static void AtForkPrepare();
  static void AtForkParent();
  static void AtForkChild();
  void Adopt(ProbeState& probe);

  static ProbeTable* instance_;
  const ProbeTable* parent_ = nullptr;  // of the process that forked this one; never touched
  std::mutex mutex_;
};

}  // namespace cgdebug
