// event_log.h: what happened, in order, for `tail`; limited per session.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "daemon/model/snapshot.h"

namespace cgdebug::pipeline {

// A line of TensorPrint, as it went to the job's terminal.
struct PrintLine {
  SnapshotPtr snapshot;
  std::string text;
};
// What the rows of one page of an op log were at one replay, in order.
struct Rows {
  std::vector<SnapshotPtr> snapshots;
};
struct Loss {
  SlotPtr slot;
  std::uint64_t count = 0;
  std::uint64_t before_replay = 0;  // the replay of the snapshot that came after; 0 = none came
  std::string_view cause;           // a literal
  // With `slot`, the rows of its page that lost the same; null if it is no row. Events share it.
  std::shared_ptr<const std::vector<SlotPtr>> rows = nullptr;

  std::size_t row_count() const { return rows == nullptr ? 0 : rows->size(); }
};
struct CompareFailure {
  SnapshotPtr snapshot;
  std::string text;
};
// A trigger froze the rings of a job in device memory.
struct Frozen {
  SlotPtr slot;  // whose trigger held
  std::uint64_t replay = 0;
  std::string text;  // what held, and where the values are now
};
// A replica is not the same on all ranks of the node.
struct Unequal {
  SnapshotPtr snapshot;  // of the first rank that has what most ranks do not have
  std::string text;      // which ranks, and what to type
};
struct SessionChange {
  bool ended = false;
};

struct Event {
  std::uint64_t number = 0;  // over all sessions, from 1
  SessionPtr session;
  std::variant<SnapshotPtr, Rows, PrintLine, Loss, CompareFailure, Frozen, Unequal, SessionChange>
      what;
  // Snapshots in its stream up to and including this event; an event without any counts as one.
  std::uint64_t snapshots = 0;
};
using EventPtr = std::shared_ptr<const Event>;

// Two limited streams per session, so that snapshots, which are many, do not push out the print log
// and the notices.
//
// Thread: any; one mutex, held only to copy pointers.
class EventLog {
 public:
  struct Limits {
    std::size_t snapshots = 4096;
    std::size_t rows = 65'536;  // in events of several
    std::size_t notices = 16384;
    std::size_t notice_text_bytes = 4u << 20;
  };
  // How far a follower has read. A default-constructed cursor stands before everything.
  struct Cursor {
    struct Place {
      std::uint64_t index = 0;      // of the next event in the stream
      std::uint64_t snapshots = 0;  // Event::snapshots of the one before it
    };
    std::map<std::string, std::array<Place, 2>> next;  // by uuid, of each stream
  };
  // How many snapshots the log dropped before the follower read them, by session.
  using Missed = std::map<SessionPtr, std::uint64_t>;

  EventLog() = default;
  explicit EventLog(const Limits& limits) : limits_(limits) {}

  // Called after Add() if the follower has read everything before it, so that a burst of events is
  // one call. Runs on the adding thread, without the mutex.
  void SetListener(std::function<void()> listener);

  // Drops what comes of a forgotten session: a thread that still works on it may add something.
  void Add(const SessionPtr& session, decltype(Event::what) what);
  void ForgetSession(const SessionPtr& session);

  // Up to `max_events` events after `cursor`, in order; moves the cursor past them.
  std::vector<EventPtr> Read(Cursor* cursor, std::size_t max_events, Missed* missed);
  // All events, in order; sets `end` past them.
  std::vector<EventPtr> All(Cursor* end);

 private:
  struct Stream {
    std::deque<EventPtr> events;
    std::uint64_t dropped = 0;  // events[i] has index dropped + i
    std::uint64_t dropped_snapshots = 0;
    std::uint64_t snapshots = 0;  // ever
    std::size_t rows = 0;         // in events of several, now
    std::size_t text_bytes = 0;
  };
  struct Session {
    SessionPtr session;
    std::array<Stream, 2> streams;
  };
  void Trim(Stream* stream, std::size_t max_events) const;

  Limits limits_;
  mutable std::mutex mutex_;
  std::map<std::string, Session> sessions_;  // by uuid
  std::set<std::weak_ptr<const SessionIdentity>, std::owner_less<>> forgotten_;
  std::uint64_t last_number_ = 0;
  bool listener_due_ = true;
  std::function<void()> listener_;
};

}  // namespace cgdebug::pipeline
