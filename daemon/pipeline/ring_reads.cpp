#include "daemon/pipeline/ring_reads.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace cgdebug::pipeline {

RingReads::RingReads() : wanted_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

RingContent RingReads::Read(const RingRequest& request) {
  std::future<RingContent> content;
  {
    const std::scoped_lock lock(mutex_);
    pending_.push_back({&request, {}});
    content = pending_.back().content.get_future();
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wanted_.get(), &one, sizeof(one));
  return content.get();
}

void RingReads::Serve(const std::function<RingContent(const RingRequest&)>& read_ring) {
  std::uint64_t count = 0;
  if (read(wanted_.get(), &count, sizeof(count)) != sizeof(count)) return;
  std::vector<Pending> pending;
  {
    const std::scoped_lock lock(mutex_);
    pending = std::exchange(pending_, {});
  }
  for (Pending& one : pending) one.content.set_value(read_ring(*one.request));
}

}  // namespace cgdebug::pipeline
