// tail_stream.h: one client's Tail request: past events, then new ones.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>

#include "daemon/core/base/glob.h"
#include "daemon/serve/handlers.h"

namespace cgdebug::serve {

// Holds at most kMaxPending events, of which the rows of an op log at one replay are one, and
// kMaxPendingRows of those rows, for a client that reads slowly; what does not fit is counted per
// session, and reported in its place as a Loss.
//
// Thread: the serve thread.
class TailStream {
 public:
  static constexpr std::size_t kMaxPending = 16384;
  static constexpr std::size_t kMaxPendingRows = 1u << 20;  // some hundred MiB

  // Fails: nullopt with *error: a bad pattern, an unknown session.
  static std::optional<TailStream> Open(const Model& model, const v1::TailRequest& request,
                                        v1::Error* error);

  // Takes what happened since the last call out of the event log.
  void Collect();

  // The next message to send; nullopt when there is none at the moment.
  std::optional<v1::TailReply> Next();
  // No further message will come.
  bool finished() const;

 private:
  TailStream(const Model& model, const v1::TailRequest& request, Selector selector);
  bool SelectsSession(const pipeline::SessionIdentity& session) const;
  bool SelectsSlot(const pipeline::SlotPtr& slot);
  bool Selects(const pipeline::Event& event);
  // An event is sent as one message, or one for each row of an op log that it is about.
  std::size_t PartsOf(const pipeline::Event& event) const;
  bool SelectsPart(const pipeline::Event& event, std::size_t part);
  bool SelectsSnapshot(const pipeline::Snapshot& snapshot, bool is_printed);
  // How many of the event's snapshots are wanted; 1 if it is about something else.
  std::uint64_t CountWanted(const pipeline::Event& event);
  void FillPart(const pipeline::Event& event, std::size_t part, v1::TailReply* reply) const;
  void Take(const pipeline::EventPtr& event);
  void TellMissed();

  Model model_;
  v1::TailRequest request_;
  Selector selector_;
  pipeline::EventLog::Cursor cursor_;
  pipeline::EventLog::Missed missed_;
  // Events, and what this stream adds: losses of this client, "caught up".
  std::deque<std::variant<pipeline::EventPtr, v1::TailReply>> pending_;
  std::size_t part_ = 0;  // of the first pending event: the next one to send
  std::size_t pending_rows_ = 0;
  std::unordered_map<pipeline::SlotPtr, bool> selected_slots_;
  std::set<std::string> alive_;  // uuids of selected sessions
  bool saw_session_ = false;
};

}  // namespace cgdebug::serve
