#include "libprobe/slots/not_seen.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/utf8.h"
#include "proto/layout/not_seen.h"

namespace cgdebug {
namespace {

// A process without a segment tries again to make one at most this often, because each attempt
// looks for room in /dev/shm.
constexpr std::chrono::seconds kBetweenAttempts{1};

}  // namespace

void NotSeen::Count(std::string_view name, std::string_view reason, bool is_captured) noexcept {
  const std::lock_guard lock(mutex_);
  ++counts_.calls;
  try {
    auto found = places_.find(name);
    if (found == places_.end()) {
      found = places_.emplace(name, Place{}).first;
      ++counts_.wanted;
    }
    Place& place = found->second;
    place.is_captured |= is_captured;
    if (++place.calls == 1) {
      place.number = ++counts_.places;
      place.reason = reason.empty() ? "unknown" : reason;
      if (first_number_ == 0) NameFirst();
    }
  } catch (const std::bad_alloc&) {  // the call is counted, its place is not
  }
  Show();
}

void NotSeen::CountMalformed(std::string_view problem) noexcept try {
  const std::lock_guard lock(mutex_);
  if (++counts_.malformed == 1) {
    const std::string text(problem);
    counts_.malformed_reason =
        text.substr(0, ring::CutLength(text, sizeof(layout::NotSeenBlock::setting)));
  }
  Show();
} catch (const std::bad_alloc&) {  // it is counted, its text is not there
}

void NotSeen::NoteSeen(std::string_view name, std::uint64_t last_order) noexcept try {
  const std::lock_guard lock(mutex_);
  newest_order_ = std::max(newest_order_, last_order);
  if (places_.contains(name)) return;
  places_.emplace(name, Place{});
  ++counts_.wanted;
  Show();
} catch (const std::bad_alloc&) {
}

void NotSeen::Forget(std::string_view name) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(name);
  if (found == places_.end() || found->second.is_captured) return;
  const Place place = std::move(found->second);
  places_.erase(found);
  ++gone_.wanted;
  gone_.calls += place.calls;
  if (place.calls > 0) {
    ++gone_.places;
    gone_order_ = newest_order_;
  }
  if (place.number != 0 && place.number == first_number_) NameFirst();
  Show();
}

void NotSeen::CountRow() noexcept {
  const std::lock_guard lock(mutex_);
  ++rows_begun_;
  if (shared_ != nullptr) ring::StoreRelaxed(shared_->rows_begun, rows_begun_);
}

void NotSeen::LetGoOfRows(std::uint64_t count) noexcept {
  const std::lock_guard lock(mutex_);
  rows_sent_ = std::min(rows_sent_ + count, rows_begun_);
  if (shared_ != nullptr) ring::StoreRelaxed(shared_->rows_sent, rows_sent_);
}

void NotSeen::NameFirst() {
  const Places::value_type* first = nullptr;
  for (const Places::value_type& place : places_) {
    const std::uint64_t number = place.second.number;
    if (number != 0 && (first == nullptr || number < first->second.number)) first = &place;
  }
  first_number_ = first == nullptr ? 0 : first->second.number;
  if (first == nullptr) return;  // the one that was named last stays
  const auto& [name, place] = *first;
  counts_.name = name.substr(0, ring::CutLength(name, sizeof(layout::NotSeenBlock::name)));
  counts_.reason =
      place.reason.substr(0, ring::CutLength(place.reason, sizeof(layout::NotSeenBlock::reason)));
}

void NotSeen::ShowIn(layout::NotSeenBlock* shared) {
  const std::lock_guard lock(mutex_);
  shared_ = shared;
  shown_number_ = 0;
  Show();
}

void NotSeen::Show() {
  if (shared_ == nullptr) return;
  ring::StoreRelaxed(shared_->rows_begun, rows_begun_);
  ring::StoreRelaxed(shared_->rows_sent, rows_sent_);
  if (counts_.malformed != 0) {
    const std::string& setting = counts_.malformed_reason;
    ring::CopyShared(shared_->setting, setting.data(), setting.size());
    ring::StoreRelaxed(shared_->setting_bytes, std::uint64_t{setting.size()});
    ring::StoreRelease(shared_->malformed, counts_.malformed);
  }
  if (counts_.calls == 0) return;
  if (first_number_ != 0 && shown_number_ != first_number_) {
    shown_number_ = first_number_;
    ring::StoreRelaxed(shared_->first, std::uint64_t{0});
    std::atomic_thread_fence(std::memory_order_release);
    ring::CopyShared(shared_->name, counts_.name.data(), counts_.name.size());
    ring::CopyShared(shared_->reason, counts_.reason.data(), counts_.reason.size());
    ring::StoreRelease(shared_->first,
                       layout::NotSeenFirst(static_cast<std::uint32_t>(shown_number_),
                                            static_cast<std::uint32_t>(counts_.name.size()),
                                            static_cast<std::uint32_t>(counts_.reason.size())));
  }
  ring::StoreRelaxed(shared_->refused_places, counts_.places);
  ring::StoreRelaxed(shared_->wanted_places, counts_.wanted);
  ring::StoreRelaxed(shared_->gone_order, gone_order_);
  ring::StoreRelaxed(shared_->gone_places, gone_.places);
  ring::StoreRelaxed(shared_->gone_calls, gone_.calls);
  ring::StoreRelaxed(shared_->gone_wanted, gone_.wanted);
  ring::StoreRelease(shared_->refused_calls, counts_.calls);
}

bool NotSeen::WantsSegment() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (shared_ != nullptr || now < next_attempt_) return false;
  next_attempt_ = now + kBetweenAttempts;
  return true;
}

NotSeenCounts NotSeen::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace cgdebug
