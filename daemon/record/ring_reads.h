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
  // lost. False: that took longer than `patience`.
  bool DrainTo(const std::function<void(const RingHeads&)>& now, std::chrono::nanoseconds patience);

  // --- for the ingest thread
  // Readable when something is wanted.
  int fd() const { return wanted_.get(); }
  void Serve(const std::function<RingContent(const RingRequest&)>& read,
             const std::function<RingHeads()>& heads);
  // After each pass. `is_read`: whether a slot is consumed up to a head, and settled.
  void Settle(const std::function<bool(const RingHead&)>& is_read);
  // Serves nothing from now on.
  void End();

  // Makes the ingest thread look at once for what waits for it. Thread: any.
  void Wake() const;

 private:
  struct Pending {
    const RingRequest* request;
    std::promise<RingContent> content;
  };
  struct Drain {
    const std::function<void(const RingHeads&)>* now;
    RingHeads unread = {};
    std::promise<void> called = {};
    std::promise<void> drained = {};
  };
  using DrainPtr = std::shared_ptr<Drain>;
  RingContent ReadOnce(const RingRequest& request);
  DrainPtr Push(const std::function<void(const RingHeads&)>& now);

  UniqueFd wanted_;
  std::mutex mutex_;
  bool ended_ = false;
  std::vector<Pending> pending_;
  std::vector<DrainPtr> wanted_drains_;
  std::vector<DrainPtr> drains_;  // of the ingest thread: `now` was called
};

}  // namespace cgdebug::pipeline
