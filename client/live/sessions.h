// sessions.h: the sessions that the daemon lists: how to select them, and how to describe them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/control.pb.h"

namespace cgdebug::live {

// "alive", "exited" (said goodbye), "died" (did not).
std::string_view StateText(v1::Session::State state);

// How long ago it began; for a dead session, how long it lived.
double AgeSeconds(const v1::Session& session);

// Whether `selector` (a key, a prefix of the uuid, a label, a run id or a pid; empty = all) names
// it.
bool MatchesSession(const v1::Session& session, std::string_view selector);

// The ranks of one run, or one process that is not distributed. A restart is a run of its own.
struct JobRanks {
  std::string name;
  std::vector<const v1::Session*> sessions;

  bool has_ranks() const { return sessions.front()->rank() >= 0; }
};
// In the order of their first session. Lifetime: of `sessions`.
std::vector<JobRanks> GroupByJob(const std::vector<v1::Session>& sessions);

// The sessions to show if none was named: those alive or, if there are none, the newest run.
// Lifetime: of `sessions`, which are in the order of their beginning.
std::vector<v1::Session> Current(const std::vector<v1::Session>& sessions);

// "0..7 of 8". Requires: has_ranks().
std::string RanksText(const JobRanks& job);
// "rank 3 has used no probe; ranks 4..7 run on other machines", as far as anything tells; empty
// when every rank is there. Requires: has_ranks().
std::string MissingRanksText(const JobRanks& job);

// Seconds since `realtime_ns`.
double SecondsSince(std::int64_t realtime_ns);

}  // namespace cgdebug::live
