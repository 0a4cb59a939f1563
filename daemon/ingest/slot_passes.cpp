#include "daemon/ingest/slot_passes.h"

#include <algorithm>
#include <utility>

#include "daemon/core/base/realtime.h"

namespace cgdebug::ingest {
namespace {

// Credits are settled after this many bytes, so that producers wait no longer than it takes to
// consume them.
constexpr std::uint64_t kSettleBytes = 64u << 10;

// How much backlog one pass reads: some ten milliseconds of work. Nobody waits for the backlog.
constexpr std::uint64_t kBacklogBytes = 128u << 20;

// In a job of this age the GPU's clock can be far off. What such a job has in its rings when it is
// found is read after its first commits, which tell, or after this time.
constexpr auto kMayHaveDrifted = std::chrono::minutes(5);
constexpr auto kLongestAwait = std::chrono::milliseconds(150);

}  // namespace

bool SlotPasses::AwaitsClock(const SlotConsumer& slot) const {
  return !drain_.is_on && slot.CanAwaitClock() && std::chrono::steady_clock::now() < *await_until_;
}

void SlotPasses::Begin(bool thorough, std::vector<SlotConsumer*>* ready) {
  pass_ = {};
  const std::int64_t looked_ns = std::exchange(looked_ns_, RealtimeNs());
  const std::uint64_t last_activity = std::exchange(activity_, view_->activity());
  if (ever_polled_ && activity_ == seen_activity_ && !thorough && !drain_.is_on) return;
  if (thorough || drain_.is_on) {
    slots_->Scan();
  } else {
    pass_.unscanned = !slots_->ScanIfChanged();
  }
  pass_.is_open = true;
  if (!await_until_) {
    const bool may_have_drifted = AgeOf(began_ns_) > kMayHaveDrifted;
    await_until_ = std::chrono::steady_clock::now();
    if (may_have_drifted) *await_until_ += kLongestAwait;
  }
  for (auto& [device, clock] : slots_->clocks()) clock.BeginLook();
  std::uint64_t backlog_bytes = 0;
  for (SlotConsumer* slot : FindWork(thorough, looked_ns, activity_ != last_activity)) {
    if (AwaitsClock(*slot)) {
      pass_.awaits_clock = true;
      continue;
    }
    if (drain_.is_on || slot->IsReadingAgain()) {
      pass_.put_off |= backlog_bytes >= kBacklogBytes;
      if (pass_.put_off) continue;
      backlog_bytes += slot->bytes_to_read();
      drain_.last_order = slot->slot()->registration.order;
    }
    ready->push_back(slot);
  }
}

// What a dead job left is read from where the pass before stopped.
const std::vector<SlotConsumer*>& SlotPasses::FindWork(bool all, std::int64_t looked_ns,
                                                       bool is_active) {
  found_.clear();
  slots_->watch().Look({std::chrono::steady_clock::now(), looked_ns_, looked_ns, is_active},
                       all || drain_.is_on, &found_);
  if (drain_.is_on) {
    const auto is_after = [](std::uint64_t order, const SlotConsumer* slot) {
      return order < slot->slot()->registration.order;
    };
    const auto next = std::upper_bound(found_.begin(), found_.end(), drain_.last_order, is_after);
    std::rotate(found_.begin(), next, found_.end());
  }
  return found_;
}

void SlotPasses::Commit(SlotConsumer* slot) {
  const SlotConsumer::Step step = slot->Commit();
  pass_.coming |= step == SlotConsumer::Step::kComing;
  if (step != SlotConsumer::Step::kConsumed) return;
  pass_.consumed_any = true;
  if (drain_.left > 0) --drain_.left;
  unsettled_.slots.push_back(slot);
  unsettled_.bytes += slot->payload_bytes();
  if (unsettled_.bytes >= kSettleBytes) Settle();
}

void SlotPasses::Settle() {
  if (unsettled_.slots.empty()) return;
  sink_->Flush();
  for (SlotConsumer* slot : unsettled_.slots) slot->Settle();
  unsettled_.slots.clear();
  unsettled_.bytes = 0;
}

bool SlotPasses::End() {
  if (!std::exchange(pass_.is_open, false)) return false;
  if (drain_.is_on) {
    drain_.empty_passes = pass_.consumed_any ? 0 : drain_.empty_passes + 1;
    const bool was_whole = !pass_.put_off || drain_.empty_passes > slots_->all().size();
    drain_.is_over = (was_whole && !pass_.consumed_any) || drain_.left == 0;
    return true;
  }
  if (pass_.consumed_any || pass_.awaits_clock) return true;
  // The head of a ring may be visible before the entry that it announces. Look again soon, but only
  // once: a job that never finishes an entry must not keep this thread awake.
  if (pass_.coming && retried_activity_ != activity_) {
    retried_activity_ = activity_;
    return false;
  }
  if (pass_.unscanned || !slots_->watch().HasSeenAll()) return false;
  seen_activity_ = activity_;
  ever_polled_ = true;
  return false;
}

bool SlotPasses::BeginDrain() {
  slots_->Scan();
  drain_.is_on = true;
  // A dead job can have left at most a ring full per slot, plus what is read again. A stray child
  // that goes on writing is not read for ever.
  bool has_work = false;
  for (const SlotConsumer* slot : slots_->all()) {
    drain_.left += 2 * std::uint64_t{slot->slot()->registration.capacity};
    has_work |= slot->HasWork();
  }
  return has_work;
}

}  // namespace cgdebug::ingest
