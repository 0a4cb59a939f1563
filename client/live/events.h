// events.h: what happened in jobs, one event at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/live/sessions.h"

namespace cgdebug::live {

enum class EventKind : std::uint8_t {
  kSnapshot,
  kPrint,  // a TensorPrint line, as it went to the job's terminal
  kLoss,
  kCompareFailed,
  kSessionJoined,
  kSessionEnded,
  kUnequal,   // a replica is not the same on all ranks of the machine
  kFrozen,    // a trigger froze the rings of a job in device memory
  kPage,      // the rows of one page of an op log at one replay
  kCaughtUp,  // events that already happened are done; what follows is live
};
constexpr std::string_view NameOf(EventKind kind) {
  constexpr std::string_view kNames[] = {
      "snapshot",      "print",   "loss",   "compare_failed", "session_joined",
      "session_ended", "unequal", "frozen", "page",           "caught_up"};
  return layout::NameAt(kNames, static_cast<std::size_t>(kind));
}

struct Event {
  EventKind kind = EventKind::kCaughtUp;
  // The session, slot and replay of the event; for a snapshot everything except the values. A
  // loss came before that replay. A loss without a probe is this client's: it read too slowly.
  source::Tensor tensor = {};
  std::string text = {};    // of a print or a failed comparison; of a loss, its cause
  std::uint64_t count = 0;  // snapshots lost
  std::uint32_t rows = 0;   // of a page; lost ones: of all these rows together, 0: it is no row
  // What a page shows of NaN and Inf; its `tensor` is its first row without statistics.
  struct Bad {
    std::uint32_t rows = 0;      // with NaN or Inf
    std::uint32_t masks = 0;     // of those, with -Inf that may be on purpose
    std::uint32_t with_nan = 0;  // likewise, with NaN
    // The first of those that are no masks; if there is none, of all.
    std::string first = {};
    std::string first_op = {};
    numerics::Stats stats = {};  // its counts of NaN and Inf, nothing else
  } bad = {};
  Session session = {};  // that joined or ended

  bool has_session() const {
    return kind == EventKind::kSessionJoined || kind == EventKind::kSessionEnded;
  }
};

// kFindings: NaN and Inf, failed comparisons, and what TensorPrint wrote.
enum class Only : std::uint8_t { kAll, kNonfinite, kChanged, kFailed, kFindings };

struct TailRequest {
  std::string session = {};
  std::vector<std::string> probes = {};
  std::uint32_t last = 0;  // so many of the newest past events come first
  bool follow = false;     // then stay until the client stops or every session has ended
  Only only = Only::kAll;
  bool until_exit = false;  // with follow: end when the selected sessions have ended
  std::vector<std::pair<int, int>> ranks = {};  // the first and the last of each range; none: all
  WhichSlots which = {};
  bool pages = false;  // one event, not one for each row, for each page of an op log and replay
};

// As client::Client::Tail.
Result<client::TailEnd> Tail(client::Client& client, const TailRequest& request,
                             const std::function<bool(const Event&)>& on_event);

}  // namespace cgdebug::live
