#include "daemon/record/ring_reads.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace cgdebug::pipeline {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(1);  // for a value on the device

}  // namespace

RingReads::RingReads() : wanted_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void RingReads::Wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wanted_.get(), &one, sizeof(one));
}

RingContent RingReads::Read(RingRequest request) {
  const auto deadline = std::chrono::steady_clock::now() + request.patience;
  while (true) {
    RingContent content = ReadOnce(request);
    if (!content.waiting) return content;
    if (request.at_least == 0) request.at_least = content.newest;
    if (std::chrono::steady_clock::now() >= deadline) {
      content.waiting = false;
      content.timed_out = true;
      content.unreadable.emplace(content.next++, layout::LossCause::kOnDevice);
      return content;
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

RingContent RingReads::ReadOnce(const RingRequest& request) {
  std::future<RingContent> content;
  {
    const std::scoped_lock lock(mutex_);
    if (ended_) return {};
    pending_.push_back({&request, {}});
    content = pending_.back().content.get_future();
  }
  Wake();
  return content.get();
}

RingReads::DrainPtr RingReads::Push(const std::function<void(const RingHeads&)>& now) {
  auto drain = std::make_shared<Drain>(Drain{.now = &now});
  {
    const std::scoped_lock lock(mutex_);
    if (ended_) return nullptr;
    wanted_drains_.push_back(drain);
  }
  Wake();
  drain->called.get_future().wait();
  return drain;
}

void RingReads::AtHeads(const std::function<void(const RingHeads&)>& now) {
  if (Push(now) == nullptr) now({});
}

bool RingReads::DrainTo(const std::function<void(const RingHeads&)>& now,
                        std::chrono::nanoseconds patience) {
  const DrainPtr drain = Push(now);
  if (drain == nullptr) {
    now({});
    return true;
  }
  return drain->drained.get_future().wait_for(patience) == std::future_status::ready;
}

void RingReads::Serve(const std::function<RingContent(const RingRequest&)>& read_ring,
                      const std::function<RingHeads()>& heads) {
  std::uint64_t count = 0;
  if (read(wanted_.get(), &count, sizeof(count)) != sizeof(count)) return;
  std::vector<Pending> pending;
  std::vector<DrainPtr> drains;
  {
    const std::scoped_lock lock(mutex_);
    pending = std::exchange(pending_, {});
    drains = std::exchange(wanted_drains_, {});
  }
  for (Pending& one : pending) one.content.set_value(read_ring(*one.request));
  for (DrainPtr& drain : drains) {
    drain->unread = heads();
    (*drain->now)(drain->unread);
    drain->called.set_value();
    drains_.push_back(std::move(drain));
  }
}

void RingReads::Settle(const std::function<bool(const RingHead&)>& is_read) {
  std::erase_if(drains_, [&](const DrainPtr& drain) {
    std::erase_if(drain->unread, is_read);
    if (drain->unread.empty()) drain->drained.set_value();
    return drain->unread.empty();
  });
}

void RingReads::End() {
  std::vector<Pending> pending;
  std::vector<DrainPtr> drains;
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    pending = std::exchange(pending_, {});
    drains = std::exchange(wanted_drains_, {});
  }
  for (Pending& one : pending) one.content.set_value({});
  for (const DrainPtr& drain : drains) {
    (*drain->now)({});
    drain->called.set_value();
    drain->drained.set_value();
  }
  for (const DrainPtr& drain : std::exchange(drains_, {})) drain->drained.set_value();
}

}  // namespace cgdebug::pipeline
