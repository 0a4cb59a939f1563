// ingest_loop.h: the thread that reads shared memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/core/base/unique_fd.h"
#include "daemon/ingest/attached_segment.h"
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
  struct Segment {
    std::unique_ptr<AttachedSegment> attached;
    bool checked = false;                                  // whether the job was looked for
    bool found_dead = false;                               // it was dead when it was found
    bool ended = false;                                    // its end was seen
    Clock::time_point expires = Clock::time_point::max();  // set when its job is gone
  };

  void Run();
  void FindSegments();
  void ServeRequests();
  bool ReadNew();
  void Check();
  void Refresh();
  pipeline::RingHeads Heads();
  void TryAttach(const std::string& name);
  bool PollAll(bool thorough);
  void CheckProducer(Segment* segment);
  void RemoveExpired();
  // Limits what dead jobs hold, and serves jobs that ask for room.
  void LimitDead();
  void ServeRoomRequests();
  // Gives back what dead jobs left, oldest first, until `bytes` are free in /dev/shm.
  void MakeRoom(std::uint64_t bytes);
  void Prune();
  std::vector<Segment*> DeadWithFiles();
  bool IsAttached(const std::string& name) const;
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
  std::vector<Segment> segments_;
  // The slots of the current pass that have a snapshot, and the segments they belong to.
  std::vector<SlotConsumer*> ready_;
  std::vector<AttachedSegment*> owners_;
  Clock::time_point last_work_;
  Clock::time_point next_scan_;
  Clock::time_point next_check_;
  Clock::time_point next_thorough_;
  Clock::time_point next_refresh_;
  Clock::time_point next_reclaim_;
  std::chrono::nanoseconds nap_{0};
  bool stopping_ = false;
  OrderedPool pool_;
  std::promise<void> caught_up_;
  std::thread thread_;
};

}  // namespace cgdebug::ingest
