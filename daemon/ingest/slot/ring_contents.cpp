#include "daemon/ingest/slot/ring_contents.h"

#include <algorithm>
#include <new>
#include <utility>

#include "daemon/core/base/terminate.h"

namespace cgdebug::ingest {

pipeline::RingContent RingContents::Read(const pipeline::RingRequest& request,
                                         bool producer_alive) {
  device_->EndAnswered();
  // No replay sends values of a graph that is gone. At its end the job does, for a recording.
  const bool is_one = request.newest || request.replay != 0;
  const bool is_sent = producer_alive && !(is_one && ring_->retired());
  pipeline::RingContent content;
  content.newest = ring_->accepted();
  content.oldest = ring_->oldest(content.newest);
  content.next = std::max(request.first_ordinal, content.oldest);
  std::uint64_t last = std::min(request.last_ordinal, content.newest);
  if (request.replay != 0) {
    last = ring_->FindReplay(request.replay, request.iteration);
    content.next = std::max<std::uint64_t>(last, 1);
  }
  if (request.newest) {
    last = content.newest;
    if (slot_->IsOnDevice() && is_sent && last != 0) {
      last = device_->Newest(request.at_least == 0 ? last : request.at_least);
    }
    content.waiting = last == 0 && content.newest != 0;
    content.next = std::max<std::uint64_t>(last, 1);
  }
  std::size_t bytes = 0;
  for (; content.next <= last && (bytes == 0 || bytes < request.max_bytes); ++content.next) {
    ring::Entry entry;
    ring::ReadStatus status = ring::ReadStatus::kNone;
    try {
      const MayRunOutOfMemory large;
      status = shown_->Read(*ring_, content.next, &entry);
    } catch (const std::bad_alloc&) {
      content.unreadable.emplace(content.next, layout::LossCause::kNoMemory);
    }
    if (status == ring::ReadStatus::kDamaged) {
      content.unreadable.emplace(content.next, layout::LossCause::kCorrupted);
    }
    if (status != ring::ReadStatus::kOk) continue;
    entry.timestamp_ns = clock_->ToHost(entry.timestamp_ns);
    if ((entry.flags & layout::kEntryOnDevice) != 0) {
      if (!is_sent || !device_->MayCome(content.next)) {
        content.unreadable.emplace(content.next, layout::LossCause::kOnDevice);
        continue;
      }
      device_->Ask(content.next);
      content.waiting = content.entries.empty();
      break;
    }
    bytes += sizeof(entry) + entry.payload.size();
    content.entries.push_back(shown_->EntryOf(std::move(entry), shown_->NumberOf(request.slot)));
  }
  content.readable = ring_->valid();
  return content;
}

}  // namespace cgdebug::ingest
