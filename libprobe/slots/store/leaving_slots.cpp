#include "libprobe/slots/store/leaving_slots.h"

#include <algorithm>
#include <utility>

#include "libprobe/ring/segment/shared_mark.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/slots/daemon_setting.h"
#include "libprobe/slots/slot_queries.h"
#include "libprobe/slots/store/eager_slots.h"

namespace cgdebug {
namespace {

using capture::ProbeSlot;

// What closed probes wrote is kept for a daemon that may still come, but not without limit: a job
// that makes and closes probes all the time would fill /dev/shm, which others need as well.
constexpr std::uint64_t kMaxUnreadBytes = 256ull << 20;

// How often what waits for a reader, or for a GPU, is looked at.
constexpr std::chrono::milliseconds kBetweenLooks{20};

// Whether nothing reaches it any more, calls on their way to the GPU included.
bool IsUnreachable(ProbeSlot& slot) {
  SettleEagerCalls(slot);
  return slot.life.unreachable();
}

}  // namespace

void LeavingSlots::Add(ProbeSlot& slot) {
  if (std::exchange(slot.is_leaving, true)) return;
  slots_.push_back(&slot);
  bytes_ += slot.block.bytes;
}

void LeavingSlots::Free(bool all, bool force, const std::function<void(ProbeSlot&)>& remove) {
  const auto now = Clock::now();
  all |= force || now >= next_look_ || bytes_ >= look_from_bytes_;
  const std::size_t begin = all ? 0 : first_new_;
  if (begin == slots_.size()) return;
  if (all) next_look_ = now + kBetweenLooks;
  std::uint64_t unread_bytes = 0;
  const ProbeSlot* newest_unread = nullptr;
  const auto free_if = [&](auto&& is_over) {
    const auto from = slots_.begin() + static_cast<std::ptrdiff_t>(begin);
    slots_.erase(std::remove_if(from, slots_.end(),
                                [&](ProbeSlot* slot) {
                                  if (!IsUnreachable(*slot) || !is_over(*slot)) return false;
                                  bytes_ -= slot->block.bytes;
                                  remove(*slot);
                                  return true;
                                }),
                 slots_.end());
    first_new_ = slots_.size();
    if (all) look_from_bytes_ = bytes_ + kMaxUnreadBytes / 8;
  };
  free_if([&](const ProbeSlot& slot) {
    if (!slot.reader || Unread(slot) == 0) return true;
    unread_bytes += slot.block.bytes;
    newest_unread = &slot;
    return false;
  });
  if (newest_unread == nullptr) return;
  const bool alive = segment_->DaemonAlive();
  const bool may_come = !DaemonForbidden();
  // It may not have found this segment yet.
  const bool runs = !alive && may_come && ring::IsMarked(ring::MarkKind::kReader);
  free_if([&](const ProbeSlot& slot) {
    const std::uint64_t unread = Unread(slot);
    const bool awaited = alive || runs || (may_come && NeedsDaemon(slot));
    const bool affordable = alive || unread_bytes <= kMaxUnreadBytes || &slot == newest_unread;
    if (awaited && affordable && !force && !slot.gives_way) return false;
    if (awaited || slot.evicted) ring::Add(segment_->writer()->producer()->released_unread, unread);
    unread_bytes -= std::min(unread_bytes, slot.block.bytes);
    return true;
  });
}

}  // namespace cgdebug
