// ring_reads.h: lets clients read rings through the ingest thread, which owns them: entries of one
// ring, or the positions of all rings at one moment.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "daemon/core/base/unique_fd.h"
#include "daemon/model/identity.h"
#include "daemon/pipeline/sink.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::pipeline {

struct RingRequest {
  SlotPtr slot;
  std::uint64_t first_ordinal = 1;
  std::uint64_t last_ordinal = 0;
  std::size_t max_bytes = 0;  // stops after so many; reads at least one entry
  std::uint64_t replay = 0;   // not 0: the entry of this replay alone, whatever its ordinal is
  std::optional<std::uint32_t> iteration = std::nullopt;  // of that replay; without one: the last
  bool newest = false;                                    // the newest entry alone
  // With `newest`, of a slot on the device: the values may be of any entry from this ordinal on. 0:
  // of the newest one there is now, or a later one.
  std::uint64_t at_least = 0;
  // How long to wait for a value that is on the device. It comes with one of the next replays.
  std::chrono::nanoseconds patience = std::chrono::seconds(5);
};

struct RingContent {
  bool readable = false;     // false: the ring is gone, and the rest means nothing
  std::uint64_t oldest = 1;  // ordinals that may be there
  std::uint64_t newest = 0;
  std::uint64_t next = 1;  // the first ordinal that was not looked at
  std::vector<ring::Entry> entries;
  // By ordinal: they are there, but cannot be read.
  std::map<std::uint64_t, layout::LossCause> unreadable;
  // The device was asked for the values of `next`, and there is no entry yet: read again.
  bool waiting = false;
  bool timed_out = false;  // the values of an unreadable one did not come in time
};

// How far a job has written one ring.
struct RingHead {
  SlotPtr slot;
  std::uint64_t ordinal = 0;     // of the newest committed entry
  std::uint64_t replay = 0;      // replays seen
  std::uint64_t suppressed = 0;  // as SlotHead
};
using RingHeads = std::vector<RingHead>;

class RingReads {
 public:
  RingReads();

  // Waits for the ingest thread, and for values on the device. Empty when that thread has ended.
  // Thread: any other.
  RingContent Read(RingRequest request);

  // Calls `now` with the heads of every ring of a live job, including jobs and slots that appeared
  // just before this call. Nothing is consumed while it runs. Jobs that ended before this call are
  // read to their end.
  // Thread: `now` runs on the ingest thread; when that has ended, on the caller's, with no heads.
  void AtHeads(const std::function<void(const RingHeads&)>& now);
  // Likewise, then waits until the sinks have everything up to these heads, or know that it is
  // lost. False: that took longer than `limit`.
  bool DrainWithin(const std::function<void(const RingHeads&)>& now,
                   std::chrono::nanoseconds limit);
  // Likewise, for as long as it gets on; a sink may wait for a slow disk. False: the ingest thread
  // looked at these rings for as long as `patience` and had nothing to read.
  bool Drain(const std::function<void(const RingHeads&)>& now, std::chrono::nanoseconds patience);

  // --- for the ingest thread
  // Readable when something is wanted.
  int fd() const { return wanted_.get(); }
  void Serve(const std::function<RingContent(const RingRequest&)>& read,
             const std::function<RingHeads()>& heads);
  // After each pass. `unread`: how many entries before a head are not consumed and settled.
  void Settle(const std::function<std::uint64_t(const RingHead&)>& unread);
  // Serves nothing from now on.
  void End();

  // Makes the ingest thread look at once for what waits for it. Thread: any.
  void Wake() const;

 private:
  struct Pending {
    const RingRequest* request;
    std::promise<RingContent> content;
  };
  struct Heads {
    const std::function<void(const RingHeads&)>* now;
    RingHeads unread = {};
    std::uint64_t unread_count = 0;
    std::promise<void> called = {};
    std::promise<void> drained = {};
    std::uint64_t passes = 0;    // of the ingest thread, since `now` was called; under mutex_
    std::uint64_t advances = 0;  // passes in which something was read; under mutex_
  };
  using HeadsPtr = std::shared_ptr<Heads>;
  RingContent ReadOnce(const RingRequest& request);
  HeadsPtr Push(const std::function<void(const RingHeads&)>& now);

  UniqueFd wanted_;
  std::mutex mutex_;
  bool ended_ = false;
  std::vector<Pending> pending_;
  std::vector<HeadsPtr> wanted_heads_;
  std::vector<HeadsPtr> heads_;  // of the ingest thread: `now` was called
};

}  // namespace cgdebug::pipeline
