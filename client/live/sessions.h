// sessions.h: the sessions that the daemon lists: how to select them, and how to describe them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/live/probe.h"
#include "daemon/core/answers/session.h"

namespace cgdebug::live {

using answers::LaneUse;
using answers::ReplicaCounts;
using answers::Session;
using answers::SessionGraphs;
using answers::SessionState;

// What the sessions wanted to be seen and nobody saw, in sentences; empty if nothing.
std::vector<std::string> NotSeenTexts(const std::vector<const Session*>& sessions);
// Which rows of their op logs hold -Inf that may be on purpose; empty: none.
std::string MasksText(const std::vector<const Session*>& sessions);

// All that the daemon knows, dead ones too, in the order of their beginning.
Result<std::vector<Session>> ListSessions(client::Client& client);

Result<std::vector<SessionGraphs>> ListGraphs(client::Client& client, const std::string& session);

// Whether `selector` (a key, a prefix of the uuid, a label, a run id or a pid; empty = all) names
// it.
bool MatchesSession(const Session& session, std::string_view selector);

// Whether a command that names no session means `a` rather than `b`: sessions that are alive come
// first, then the newest.
bool ComesFirst(const Session& a, const Session& b);

// The ranks of one run, or one process that is not distributed. A restart is a run of its own.
struct JobRanks {
  std::string name;
  std::vector<const Session*> sessions;

  bool has_ranks() const { return sessions.front()->rank >= 0; }
  layout::Counters Counted() const {
    layout::Counters sum;
    for (const Session* session : sessions) sum.Add(session->counters);
    return sum;
  }
};
// In the order of their first session. Lifetime: of `sessions`.
std::vector<JobRanks> GroupByJob(const std::vector<Session>& sessions);

// The sessions to show if none was named: those alive or, if there are none, the newest run.
// Lifetime: of `sessions`, which are in the order of their beginning.
std::vector<Session> Current(const std::vector<Session>& sessions);

// "0..7 of 8". Requires: has_ranks().
std::string RanksText(const JobRanks& job);
// "rank 3 has used no probe; ranks 4..7 run on other machines", as far as anything tells; empty
// when every rank is there. Requires: has_ranks().
std::string MissingRanksText(const JobRanks& job);

// Seconds since `realtime_ns`; 0 if it is still to come.
double SecondsSince(std::int64_t realtime_ns);

// How long ago the newest snapshot of a job came that is alive, if that is long: 0 else.
double StalledSeconds(const Session& session);

}  // namespace cgdebug::live
