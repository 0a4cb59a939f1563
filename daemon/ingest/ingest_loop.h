// ingest_loop.h: the thread that reads shared memory.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/core/base/unique_fd.h"
#include "daemon/ingest/kept_segments.h"
#include "daemon/ingest/ordered_pool.h"
#include "daemon/ingest/segment_watcher.h"
#include "libprobe/ring/segment/shared_mark.h"

namespace cgdebug::ingest {

struct IngestOptions {
  std::chrono::nanoseconds keep_dead = std::chrono::hours(1);
  std::size_t workers = 0;  // threads that prepare large snapshots for the ingest thread
  std::string socket;       // its own; jobs that name another socket are left to that daemon
  bool is_private = false;  // jobs that name no socket are left to the user's daemon, if one runs
};

// Finds segments, reads them, and keeps what dead jobs left for `keep_dead`. One thread owns shared
// memory and sinks; the workers of a pool copy large snapshots and compute their statistics for it.
//
// Waiting: spins for 20 us after the last snapshot, then naps from 50 us doubling to 1 ms, and 20
// ms after a second of silence. Without a live job it sleeps until something appears in /dev/shm.
class IngestLoop {
 public:
  IngestLoop(const IngestOptions& options, const Destination& destination);
  ~IngestLoop();
  IngestLoop(const IngestLoop&) = delete;
  IngestLoop& operator=(const IngestLoop&) = delete;

  // Returns when everything that was there before is read, or after two seconds: a client that
  // starts a daemon asks it at once.
  // Thread: any.
  void Start();
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  void FindSegments();
  void ServeRequests();
  bool ReadNew();
  void Check();
  void Refresh();
  pipeline::RingHeads Heads();
  void TryAttach(const std::string& name);
  bool PollAll(bool thorough);
  void ShowSkipped();
  void Wait(bool any);
  std::chrono::nanoseconds NextNap();
  bool AnyAlive() const;
  std::size_t LiveSlots() const;

  IngestOptions options_;
  Destination destination_;
  UniqueFd stop_;
  ring::SharedMark mark_{ring::MarkKind::kReader};
  std::unique_ptr<SegmentWatcher> watcher_;
  KeptSegments segments_;
  // The slots of the current pass that have a snapshot, and the segments they belong to.
  std::vector<SlotConsumer*> ready_;
  std::vector<AttachedSegment*> owners_;
  Clock::time_point last_work_;
  Clock::time_point next_scan_;
  Clock::time_point next_check_;
  Clock::time_point next_thorough_;
  Clock::time_point next_refresh_;
  std::chrono::nanoseconds nap_{0};
  bool stopping_ = false;
  OrderedPool pool_;
  std::promise<void> caught_up_;
  std::thread thread_;
};

}  // namespace cgdebug::ingest
