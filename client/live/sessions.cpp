#include "client/live/sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>

#include "client/analysis/diff/align.h"
#include "daemon/core/base/realtime.h"
#include "daemon/core/base/session_selector.h"

namespace cgdebug::live {
namespace {

using Ranks = std::set<std::uint64_t>;

constexpr std::int32_t kMostRanks = 1 << 20;  // a job's own claims are not trusted

Ranks RanksOf(const JobRanks& job) {
  Ranks ranks;
  for (const Session* session : job.sessions) {
    if (session->rank >= 0) ranks.insert(static_cast<std::uint64_t>(session->rank));
  }
  return ranks;
}

std::int32_t WorldSize(const JobRanks& job) {
  std::int32_t size = 0;
  for (const Session* session : job.sessions) size = std::max(size, session->world_size);
  return std::min(size, kMostRanks);
}

// The ranks that the launcher put on this machine; empty if it does not tell.
Ranks LocalRanks(const JobRanks& job) {
  Ranks ranks;
  for (const Session* session : job.sessions) {
    const std::int32_t first = session->rank - session->local_rank;
    if (session->local_rank < 0 || session->local_world_size > kMostRanks || first < 0) continue;
    for (std::int32_t i = 0; i < session->local_world_size; ++i) {
      ranks.insert(static_cast<std::uint64_t>(first + i));
    }
  }
  return ranks;
}

std::string Text(const Ranks& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s",
                     analysis::RangesText({ranks.begin(), ranks.end()}));
}

}  // namespace

std::vector<std::string> NotSeenTexts(const std::vector<const Session*>& sessions) {
  std::vector<std::pair<std::string, std::string>> told;
  for (const Session* session : sessions) {
    const std::string who = session->rank < 0 ? "" : fmt::format("rank {}", session->rank);
    for (const layout::NotSeen& one : session->not_seen) told.emplace_back(who, ToText(one));
  }
  return source::SaidOnce(told);
}

std::string MasksText(const std::vector<const Session*>& sessions) {
  std::uint64_t count = 0;
  const Session* first = nullptr;
  for (const Session* session : sessions) {
    count += session->mask_probes;
    if (first == nullptr && session->mask_probes > 0) first = session;
  }
  if (count == 0) return "";
  if (count == 1) return first->first_mask + " holds -Inf, no NaN and no +Inf: a mask?";
  return fmt::format("{} rows of op logs hold -Inf, no NaN and no +Inf, first {}: masks?", count,
                     first->first_mask);
}

std::vector<JobRanks> GroupByJob(const std::vector<Session>& sessions) {
  std::vector<JobRanks> jobs;
  for (const Session& session : sessions) {
    std::string name = session.run_id.empty() ? session.label : session.run_id;
    if (session.restart_count > 0) name += fmt::format(" (restart {})", session.restart_count);
    const auto it = std::find_if(jobs.begin(), jobs.end(),
                                 [&](const JobRanks& job) { return job.name == name; });
    JobRanks& job = it == jobs.end() ? jobs.emplace_back(JobRanks{name, {}}) : *it;
    job.sessions.push_back(&session);
  }
  return jobs;
}

std::vector<Session> Current(const std::vector<Session>& sessions) {
  std::vector<Session> current;
  std::ranges::copy_if(sessions, std::back_inserter(current), [](const Session& session) {
    return session.state == SessionState::kAlive;
  });
  if (!current.empty() || sessions.empty()) return current;
  const Session* newest = &*std::ranges::max_element(
      sessions, {}, [](const Session& session) { return session.created_ns; });
  for (const JobRanks& job : GroupByJob(sessions)) {
    if (std::ranges::find(job.sessions, newest) == job.sessions.end()) continue;
    for (const Session* session : job.sessions) current.push_back(*session);
  }
  return current;
}

std::string RanksText(const JobRanks& job) {
  const Ranks ranks = RanksOf(job);
  return fmt::format("{} of {}", analysis::RangesText({ranks.begin(), ranks.end()}),
                     std::max<std::size_t>(static_cast<std::size_t>(WorldSize(job)), ranks.size()));
}

std::string MissingRanksText(const JobRanks& job) {
  const Ranks seen = RanksOf(job);
  const Ranks local = LocalRanks(job);
  Ranks silent, elsewhere;
  for (std::int32_t i = 0; i < WorldSize(job); ++i) {
    const auto rank = static_cast<std::uint64_t>(i);
    if (seen.contains(rank)) continue;
    (local.contains(rank) ? silent : elsewhere).insert(rank);
  }
  std::string text;
  if (!silent.empty()) {
    text = fmt::format("{} {} used no probe", Text(silent), silent.size() == 1 ? "has" : "have");
  }
  if (!elsewhere.empty()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", Text(elsewhere),
                        local.empty()           ? "not seen by this daemon"
                        : elsewhere.size() == 1 ? "runs on another machine"
                                                : "run on other machines");
  }
  return text;
}

double SecondsSince(std::int64_t realtime_ns) {
  return std::chrono::duration<double>(AgeOf(realtime_ns)).count();
}

double StalledSeconds(const Session& session) {
  constexpr double kLong = 10;
  if (session.state != SessionState::kAlive || session.moved_ns == 0) return 0;
  const double seconds = SecondsSince(session.moved_ns);
  return seconds < kLong ? 0 : seconds;
}

bool ComesFirst(const Session& a, const Session& b) {
  const bool is_a_alive = a.state == SessionState::kAlive;
  const bool is_b_alive = b.state == SessionState::kAlive;
  return is_a_alive != is_b_alive ? is_a_alive : a.created_ns > b.created_ns;
}

bool MatchesSession(const Session& session, std::string_view selector) {
  return selector.empty() || selector == session.key ||
         NamesSession(selector, session.label, session.run_id, session.pid, session.uuid);
}

}  // namespace cgdebug::live
