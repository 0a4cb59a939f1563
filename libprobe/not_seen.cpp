#include "libprobe/not_seen.h"

#include <cstddef>
#include <exception>
#include <functional>

#include "libprobe/probe_table.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/utf8.h"

namespace cgdebug {
namespace {

// A process without a segment tries again to make one at most this often, because each attempt
// looks for room in /dev/shm.
constexpr std::chrono::seconds kBetweenAttempts{1};

}  // namespace

void NotSeen::Count(std::string_view name, std::string_view reason, bool is_new_place) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    ++counts_.calls;
    // A forked child inherits what its callers know, but not the counts.
    if (is_new_place || places_.empty()) places_.insert(std::hash<std::string_view>()(name));
    counts_.places = places_.size();
    if (counts_.reason.empty()) {
      counts_.name = name.substr(0, ring::CutLength(name, sizeof(layout::NotSeen::name)));
      counts_.reason = reason.substr(0, ring::CutLength(reason, sizeof(layout::NotSeen::reason)));
      if (counts_.reason.empty()) counts_.reason = "unknown";
    }
    Show();
  } catch (const std::exception&) {  // no memory is left: the call is counted, its place is not
    if (shared_ != nullptr) Show();
  }
}

void NotSeen::ShowIn(layout::NotSeen* shared) {
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

void CountNotSeen(std::string_view name, std::string_view reason, bool is_new_place) noexcept {
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
