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
  if (const auto* unequal = std::get_if<Unequal>(&event.what)) return unequal->text.size();
  if (const auto* frozen = std::get_if<Frozen>(&event.what)) return frozen->text.size();
  return 0;
}

std::size_t RowsOf(const Event& event) {
  const auto* rows = std::get_if<Rows>(&event.what);
  return rows == nullptr ? 0 : rows->snapshots.size();
}

}  // namespace

void EventLog::SetListener(std::function<void()> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void EventLog::Trim(Stream* stream, std::size_t max_events) const {
  while (stream->events.size() > max_events ||
         ((stream->text_bytes > limits_.notice_text_bytes || stream->rows > limits_.rows) &&
          stream->events.size() > 1)) {
    const Event& oldest = *stream->events.front();
    stream->text_bytes -= TextBytes(oldest);
    stream->rows -= RowsOf(oldest);
    stream->dropped_snapshots = oldest.snapshots;
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
    if (forgotten_.contains(session)) return;
    event->number = ++last_number_;
    Session& log = sessions_[session->uuid];
    log.session = session;
    const std::size_t rows = RowsOf(*event);
    const bool is_snapshot = rows > 0 || std::holds_alternative<SnapshotPtr>(event->what);
    Stream& stream = log.streams[is_snapshot ? kSnapshots : kNotices];
    stream.text_bytes += TextBytes(*event);
    stream.rows += rows;
    event->snapshots = stream.snapshots += std::max<std::size_t>(rows, 1);
    stream.events.push_back(std::move(event));
    Trim(&stream, is_snapshot ? limits_.snapshots : limits_.notices);
    if (std::exchange(listener_due_, false)) listener = listener_;
  }
  if (listener) listener();
}

void EventLog::ForgetSession(const SessionPtr& session) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(session->uuid);
  std::erase_if(forgotten_, [](const auto& one) { return one.expired(); });
  forgotten_.insert(session);
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
      if (next[i].index < stream.dropped) {
        (*missed)[session.session] += stream.dropped_snapshots - next[i].snapshots;
        next[i] = {stream.dropped, stream.dropped_snapshots};
      }
    }
  }
  while (events.size() < max_events) {
    const Stream* oldest = nullptr;
    Cursor::Place* oldest_next = nullptr;
    std::uint64_t oldest_number = std::numeric_limits<std::uint64_t>::max();
    for (const auto& [uuid, session] : sessions_) {
      auto& next = cursor->next[uuid];
      for (std::size_t i = 0; i < next.size(); ++i) {
        const Stream& stream = session.streams[i];
        const std::uint64_t offset = next[i].index - stream.dropped;
        if (offset >= stream.events.size()) continue;
        if (stream.events[offset]->number < oldest_number) {
          oldest_number = stream.events[offset]->number;
          oldest = &stream;
          oldest_next = &next[i];
        }
      }
    }
    if (oldest == nullptr) break;
    events.push_back(oldest->events[oldest_next->index - oldest->dropped]);
    *oldest_next = {oldest_next->index + 1, events.back()->snapshots};
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
        end->next[uuid][i] = {stream.dropped + stream.events.size(), stream.snapshots};
      }
    }
  }
  std::sort(events.begin(), events.end(),
            [](const EventPtr& a, const EventPtr& b) { return a->number < b->number; });
  return events;
}

}  // namespace cgdebug::pipeline
