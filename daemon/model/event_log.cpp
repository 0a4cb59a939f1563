#include "daemon/model/event_log.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace cgdebug::pipeline {
namespace {

constexpr std::size_t kSnapshots = 0;
constexpr std::size_t kNotices = 1;

std::size_t TextBytes(const Event& event) {
  if (const auto* line = std::get_if<PrintLine>(&event.what)) return line->text.size();
  if (const auto* failure = std::get_if<CompareFailure>(&event.what)) return failure->text.size();
  if (const auto* frozen = std::get_if<Frozen>(&event.what)) return frozen->text.size();
  return 0;
}

}  // namespace

void EventLog::SetListener(std::function<void()> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void EventLog::Trim(Stream* stream, std::size_t max_events, std::size_t max_text_bytes) {
  while (stream->events.size() > max_events ||
         (stream->text_bytes > max_text_bytes && stream->events.size() > 1)) {
    stream->text_bytes -= TextBytes(*stream->events.front());
    stream->events.pop_front();
    ++stream->dropped;
  }
}

void EventLog::Add(const SessionPtr& session, decltype(Event::what) what) {
  auto event = std::make_shared<Event>();
  event->session = session;
  event->what = std::move(what);
  std::function<void()> listener;
  {
    const std::lock_guard lock(mutex_);
    event->number = ++last_number_;
    Session& log = sessions_[session->uuid];
    log.session = session;
    const bool is_snapshot = std::holds_alternative<SnapshotPtr>(event->what);
    Stream& stream = log.streams[is_snapshot ? kSnapshots : kNotices];
    stream.text_bytes += TextBytes(*event);
    stream.events.push_back(std::move(event));
    Trim(&stream, is_snapshot ? limits_.snapshots : limits_.notices, limits_.notice_text_bytes);
    if (std::exchange(listener_due_, false)) listener = listener_;
  }
  if (listener) listener();
}

void EventLog::ForgetSession(const SessionPtr& session) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(session->uuid);
}

std::vector<EventPtr> EventLog::Read(Cursor* cursor, std::size_t max_events, Missed* missed) {
  std::vector<EventPtr> events;
  const std::lock_guard lock(mutex_);
  listener_due_ = true;
  std::erase_if(cursor->next, [&](const auto& next) { return !sessions_.contains(next.first); });
  for (const auto& [uuid, session] : sessions_) {
    auto& next = cursor->next[uuid];
    for (std::size_t i = 0; i < next.size(); ++i) {
      const Stream& stream = session.streams[i];
      if (next[i] < stream.dropped) {
        (*missed)[session.session] += stream.dropped - next[i];
        next[i] = stream.dropped;
      }
    }
  }
  while (events.size() < max_events) {
    const Stream* oldest = nullptr;
    std::uint64_t* oldest_next = nullptr;
    std::uint64_t oldest_number = std::numeric_limits<std::uint64_t>::max();
    for (const auto& [uuid, session] : sessions_) {
      auto& next = cursor->next[uuid];
      for (std::size_t i = 0; i < next.size(); ++i) {
        const Stream& stream = session.streams[i];
        const std::uint64_t offset = next[i] - stream.dropped;
        if (offset >= stream.events.size()) continue;
        if (stream.events[offset]->number < oldest_number) {
          oldest_number = stream.events[offset]->number;
          oldest = &stream;
          oldest_next = &next[i];
        }
      }
    }
    if (oldest == nullptr) break;
    events.push_back(oldest->events[*oldest_next - oldest->dropped]);
    ++*oldest_next;
  }
  return events;
}

std::vector<EventPtr> EventLog::All(Cursor* end) {
  std::vector<EventPtr> events;
  {
    const std::lock_guard lock(mutex_);
    listener_due_ = true;
    end->next.clear();
    for (const auto& [uuid, session] : sessions_) {
      for (std::size_t i = 0; i < session.streams.size(); ++i) {
        const Stream& stream = session.streams[i];
        events.insert(events.end(), stream.events.begin(), stream.events.end());
        end->next[uuid][i] = stream.dropped + stream.events.size();
      }
    }
  }
  std::sort(events.begin(), events.end(),
            [](const EventPtr& a, const EventPtr& b) { return a->number < b->number; });
  return events;
}

}  // namespace cgdebug::pipeline
