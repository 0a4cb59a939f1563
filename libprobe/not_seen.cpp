#include "libprobe/not_seen.h"

#include <cstddef>
#include <exception>
#include <functional>
#include <new>
#include <string>

#include "libprobe/probe_table.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/utf8.h"

namespace cgdebug {
namespace {

// A process without a segment tries again to make one at most this often, because each attempt
// looks for room in /dev/shm.
constexpr std::chrono::seconds kBetweenAttempts{1};

// The probe whose call on this thread was refused last, so that a caller that hears of it, too,
// does not count the call again.
thread_local std::string refused_here;

}  // namespace

void NotSeen::Count(std::string_view name, std::string_view reason, bool is_new_place) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    ++counts_.calls;
    // A forked child inherits what its callers know, but not the counts.
    if (is_new_place || refused_.empty()) {
      const std::size_t hash = std::hash<std::string_view>()(name);
      wanted_.insert(hash);
      refused_.insert(hash);
    }
    counts_.places = refused_.size();
    counts_.wanted = wanted_.size();
    if (counts_.reason.empty()) {
      counts_.name = name.substr(0, ring::CutLength(name, sizeof(layout::NotSeenBlock::name)));
      counts_.reason =
          reason.substr(0, ring::CutLength(reason, sizeof(layout::NotSeenBlock::reason)));
      if (counts_.reason.empty()) counts_.reason = "unknown";
    }
    Show();
  } catch (const std::exception&) {  // no memory is left: the call is counted, its place is not
    if (shared_ != nullptr) Show();
  }
}

void NotSeen::NoteSeen(std::string_view name) noexcept try {
  const std::lock_guard lock(mutex_);
  wanted_.insert(std::hash<std::string_view>()(name));
  counts_.wanted = wanted_.size();
  Show();
} catch (const std::bad_alloc&) {
}

void NotSeen::ShowIn(layout::NotSeenBlock* shared) {
  const std::lock_guard lock(mutex_);
  shared_ = shared;
  Show();
}

void NotSeen::Show() {
  if (shared_ == nullptr || counts_.calls == 0) return;
  if (shared_->first == 0 && !counts_.reason.empty()) {
    ring::CopyShared(shared_->name, counts_.name.data(), counts_.name.size());
    ring::CopyShared(shared_->reason, counts_.reason.data(), counts_.reason.size());
    ring::StoreRelease(shared_->first,
                       layout::NotSeenFirst(static_cast<std::uint32_t>(counts_.name.size()),
                                            static_cast<std::uint32_t>(counts_.reason.size())));
  }
  ring::StoreRelaxed(shared_->refused_places, counts_.places);
  ring::StoreRelaxed(shared_->wanted_places, counts_.wanted);
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

void CountRefused(std::string_view probe, std::string_view reason) noexcept {
  CountNotSeen(probe, reason, /*is_new_place=*/true);
  try {
    refused_here = probe;
  } catch (const std::bad_alloc&) {
  }
}

void CountNotSeen(std::string_view name, std::string_view reason, bool is_new_place) noexcept {
  // The probes of a place have its name, and then more.
  const bool is_counted = !name.empty() && refused_here.starts_with(name);
  refused_here.clear();
  if (is_counted) return;
  try {
    ProbeTable& table = ProbeTable::Instance();
    table.not_seen.Count(name, reason, is_new_place);
    if (!table.not_seen.WantsSegment()) return;
    const ProbeTable::Lock lock = table.Acquire();
    (void)table.slots.Segment();
  } catch (const std::exception&) {  // no room even for the control file: the process knows it
  }
}

NotSeenCounts NotSeenSoFar() { return ProbeTable::Instance().not_seen.counts(); }

}  // namespace cgdebug
