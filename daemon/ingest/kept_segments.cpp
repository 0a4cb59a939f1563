#include "daemon/ingest/kept_segments.h"

#include <algorithm>
#include <utility>

#include "daemon/core/base/realtime.h"
#include "daemon/log/log.h"
#include "libprobe/ring/segment/reclaim.h"

namespace cgdebug::ingest {
namespace {

using Clock = KeptSegment::Clock;
using std::chrono::nanoseconds;

constexpr double kReclaimAfterSeconds = 3600;
constexpr auto kReclaim = std::chrono::minutes(1);  // of what other daemons' dead jobs left
constexpr nanoseconds kGrace = std::chrono::minutes(10);
// Parts of /dev/shm: what stays free while dead jobs hold some, and what these may hold together.
constexpr double kFreePart = 1.0 / 16;
constexpr double kDeadPart = 1.0 / 4;
constexpr std::size_t kMaxDead = 64;  // sessions shown

}  // namespace

// A job that ends while this daemon watches is kept from now on. One that was found dead is kept
// from its last snapshot on, but long enough for the person who started this daemon to look at it.
void KeptSegments::Check(KeptSegment* segment) {
  AttachedSegment& attached = *segment->attached;
  if (segment->ended) return;
  attached.CheckProducer();
  if (!std::exchange(segment->checked, true)) {
    segment->found_dead = attached.draining() || !attached.alive();
  }
  if (attached.broken()) attached.Abandon();
  if (attached.alive()) return;
  segment->ended = true;
  nanoseconds left = keep_dead_;
  if (segment->found_dead) {
    left = std::max(left - AgeOf(attached.last_timestamp_ns()), std::min(left, kGrace));
  }
  segment->expires = Clock::now() + left;
}

void KeptSegments::RemoveExpired() {
  const auto now = Clock::now();
  std::erase_if(segments_, [&](KeptSegment& segment) {
    if (now < segment.expires) return false;
    segment.attached->Remove();
    return true;
  });
}

bool KeptSegments::Has(const std::string& name) const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [&](const KeptSegment& segment) { return segment.attached->name() == name; });
}

// Oldest first.
std::vector<KeptSegment*> KeptSegments::DeadWithFiles() {
  std::vector<KeptSegment*> dead;
  for (KeptSegment& segment : segments_) {
    if (segment.ended && segment.attached->shm_bytes() != 0) dead.push_back(&segment);
  }
  std::stable_sort(dead.begin(), dead.end(), [](const KeptSegment* a, const KeptSegment* b) {
    return a->attached->last_timestamp_ns() < b->attached->last_timestamp_ns();
  });
  return dead;
}

void KeptSegments::MakeRoom(std::uint64_t bytes) {
  ring::EvictDeadSegments(bytes, [this](const std::string& name) { return Has(name); });
  for (KeptSegment* segment : DeadWithFiles()) {
    if (ring::GetShmSpace().free_bytes >= static_cast<double>(bytes)) return;
    segment->attached->Release();
  }
}

void KeptSegments::ServeRoomRequests() {
  for (KeptSegment& segment : segments_) {
    const std::uint64_t bytes = segment.attached->RoomWanted();
    if (bytes == 0) continue;
    MakeRoom(bytes);
    segment.attached->AnswerRoom();
  }
}

void KeptSegments::Limit() {
  if (Clock::now() >= next_reclaim_) {
    ring::ReclaimDeadSegments(kReclaimAfterSeconds,
                              [this](const std::string& name) { return Has(name); });
    next_reclaim_ = Clock::now() + kReclaim;
  }
  std::vector<KeptSegment*> dead = DeadWithFiles();
  const ring::ShmSpace space = ring::GetShmSpace();
  if (!dead.empty() && space.free_bytes < kFreePart * space.total_bytes) {
    MakeRoom(static_cast<std::uint64_t>(kFreePart * space.total_bytes));
    dead = DeadWithFiles();
  }
  double bytes = 0;
  for (const KeptSegment* segment : dead)
    bytes += static_cast<double>(segment->attached->shm_bytes());
  // The newest stays, because its user will look at it.
  for (std::size_t i = 0; i + 1 < dead.size() && bytes > kDeadPart * space.total_bytes; ++i) {
    bytes -= static_cast<double>(dead[i]->attached->shm_bytes());
    if (space.total_bytes > 0) dead[i]->attached->Release();
  }
  std::size_t count = static_cast<std::size_t>(
      std::count_if(segments_.begin(), segments_.end(),
                    [](const KeptSegment& segment) { return segment.ended; }));
  for (KeptSegment& segment : segments_) {  // in the order in which they were found
    if (count <= kMaxDead) break;
    if (!segment.ended) continue;
    Log("ingest")->warn("{} is forgotten: at most {} jobs that ended are kept",
                        segment.attached->name(), kMaxDead);
    segment.expires = Clock::now();
    --count;
  }
}

void KeptSegments::Prune() {
  for (KeptSegment& segment : segments_) {
    if (!segment.attached->alive()) segment.expires = Clock::now();
  }
  RemoveExpired();
  ring::ReclaimDeadSegments(0, [this](const std::string& name) { return Has(name); });
}

}  // namespace cgdebug::ingest
