// ring_reads.h: what a client wants read out of a ring, by the ingest thread, which owns them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/pipeline/identity.h"
#include "daemon/pipeline/sink.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::pipeline {

struct RingRequest {
  SlotPtr slot;
  std::uint64_t first_ordinal = 1;
  std::uint64_t last_ordinal = 0;
  std::size_t max_bytes = 0;  // stop after so many; one entry at least
};

struct RingContent {
  bool readable = false;     // false: the ring is gone, nothing below means anything
  std::uint64_t oldest = 1;  // ordinals that may be there
  std::uint64_t newest = 0;
  std::uint64_t next = 1;  // the first ordinal that was not looked at
  std::vector<ring::Entry> entries;
  std::map<std::uint64_t, Gap::Cause> unreadable;  // by ordinal: they are there, and not to be had
};

class RingReads {
 public:
  RingReads();

  // Waits for the ingest thread, which runs for as long as there are clients.
  // Thread: any but that.
  RingContent Read(const RingRequest& request);

  // Thread: ingest. Readable when something is wanted.
  int fd() const { return wanted_.get(); }
  void Serve(const std::function<RingContent(const RingRequest&)>& read);

 private:
  struct Pending {
    const RingRequest* request;
    std::promise<RingContent> content;
  };

  UniqueFd wanted_;
  std::mutex mutex_;
  std::vector<Pending> pending_;
};

}  // namespace cgdebug::pipeline
