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

RingReads::HeadsPtr RingReads::Push(const std::function<void(const RingHeads&)>& now) {
  auto heads = std::make_shared<Heads>(Heads{.now = &now});
  {
    const std::scoped_lock lock(mutex_);
    if (ended_) return nullptr;
    wanted_heads_.push_back(heads);
  }
  Wake();
  heads->called.get_future().wait();
  return heads;
}

void RingReads::AtHeads(const std::function<void(const RingHeads&)>& now) {
  if (Push(now) == nullptr) now({});
}

bool RingReads::DrainWithin(const std::function<void(const RingHeads&)>& now,
                            std::chrono::nanoseconds limit) {
  const HeadsPtr heads = Push(now);
  if (heads != nullptr) {
    return heads->drained.get_future().wait_for(limit) == std::future_status::ready;
  }
  now({});
  return true;
}

bool RingReads::Drain(const std::function<void(const RingHeads&)>& now,
                      std::chrono::nanoseconds patience) {
  const HeadsPtr heads = Push(now);
  if (heads == nullptr) {
    now({});
    return true;
  }
  const std::future<void> drained = heads->drained.get_future();
  std::uint64_t passes = 0;
  std::uint64_t advances = 0;
  while (drained.wait_for(patience) != std::future_status::ready) {
    const std::scoped_lock lock(mutex_);
    // The first pass may have begun before.
    if (heads->passes - passes >= 2 && heads->advances == advances) return false;
    passes = heads->passes;
    advances = heads->advances;
  }
  return true;
}

void RingReads::Serve(const std::function<RingContent(const RingRequest&)>& read_ring,
                      const std::function<RingHeads()>& heads) {
  std::uint64_t count = 0;
  if (read(wanted_.get(), &count, sizeof(count)) != sizeof(count)) return;
  std::vector<Pending> pending;
  std::vector<HeadsPtr> wanted;
  {
    const std::scoped_lock lock(mutex_);
    pending = std::exchange(pending_, {});
    wanted = std::exchange(wanted_heads_, {});
  }
  for (Pending& one : pending) one.content.set_value(read_ring(*one.request));
  for (HeadsPtr& one : wanted) {
    one->unread = heads();
    (*one->now)(one->unread);
    one->called.set_value();
    heads_.push_back(std::move(one));
  }
}

void RingReads::Settle(const std::function<std::uint64_t(const RingHead&)>& unread) {
  std::erase_if(heads_, [&](const HeadsPtr& heads) {
    std::uint64_t count = 0;
    std::erase_if(heads->unread, [&](const RingHead& head) {
      const std::uint64_t of_head = unread(head);
      count += of_head;
      return of_head == 0;
    });
    {
      const std::scoped_lock lock(mutex_);
      if (++heads->passes > 1 && count < heads->unread_count) ++heads->advances;
    }
    heads->unread_count = count;
    if (heads->unread.empty()) heads->drained.set_value();
    return heads->unread.empty();
  });
}

void RingReads::End() {
  std::vector<Pending> pending;
  std::vector<HeadsPtr> wanted;
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    pending = std::exchange(pending_, {});
    wanted = std::exchange(wanted_heads_, {});
  }
  for (Pending& one : pending) one.content.set_value({});
  for (const HeadsPtr& one : wanted) {
    (*one->now)({});
    one->called.set_value();
    one->drained.set_value();
  }
  for (const HeadsPtr& drain : std::exchange(heads_, {})) drain->drained.set_value();
}

}  // namespace cgdebug::pipeline
