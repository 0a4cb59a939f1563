#include "client/live/status.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "client/analysis/diff/align.h"
#include "client/cli/command.h"
#include "client/cli/remote/job_questions.h"
#include "client/cli/views/json.h"
#include "client/cli/views/live/session_text.h"
#include "client/cli/views/recording_text.h"
#include "client/cli/views/terminal.h"
#include "client/live/sessions.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

std::string RankText(const live::Session& session) {
  return session.rank < 0 ? fmt::format("pid {}", session.pid)
                          : fmt::format("rank {}", session.rank);
}

// `all`: also the sessions of the job that are not shown.
std::string StatesText(const live::JobRanks& job, const live::JobRanks& all) {
  if (!job.has_ranks()) {
    std::map<std::string, std::vector<int>> pids;
    for (const live::Session* session : job.sessions) {
      pids[StateText(*session)].push_back(session->pid);
    }
    std::string text;
    for (const auto& [state, some] : pids) {
      text += fmt::format("{}{} (pid {})", text.empty() ? "" : ", ", state, fmt::join(some, ", "));
    }
    return text;
  }
  std::map<std::string_view, std::set<std::uint64_t>> ranks;
  for (const live::Session* session : job.sessions) {
    ranks[StateName(*session)].insert(static_cast<std::uint64_t>(session->rank));
  }
  std::string text = fmt::format("ranks {} ", live::RanksText(job));
  if (ranks.size() == 1) {
    text += ranks.begin()->first;
  } else {
    std::string states;
    for (const auto& [state, some] : ranks) {
      states += fmt::format("{}{} {}", states.empty() ? "" : ", ",
                            analysis::RangesText({some.begin(), some.end()}), state);
    }
    text += "(" + states + ")";
  }
  // A rank that is not shown because it ended, or because of --ranks, is not missing.
  const std::string missing = live::MissingRanksText(all);
  return missing.empty() ? text : text + "; " + missing;
}

std::string ReplayText(const live::JobRanks& job) {
  std::uint64_t newest = 0;
  for (const live::Session* session : job.sessions) newest = std::max(newest, session->replay);
  std::string behind;
  for (const live::Session* session : job.sessions) {
    if (session->replay == newest) continue;
    behind +=
        fmt::format("{}{}: {}", behind.empty() ? "" : ", ", RankText(*session), session->replay);
  }
  const char* word = "replay";
  for (const live::Session* session : job.sessions) {
    if (session->replay == newest) word = session->replay_word();
  }
  std::string text = fmt::format("{} {}", word, newest);
  if (!behind.empty()) text += fmt::format(" ({})", behind);
  if (job.sessions.front()->step >= 0) {
    text += fmt::format("  step {}", job.sessions.front()->step);
  }
  return text;
}

// Names the cause and the place of each loss: without them nobody could act on it.
std::string LossText(const live::JobRanks& job, const Style& style) {
  const layout::Counters sum = job.Counted();
  std::string text = "lost 0";
  if (sum.lost() > 0) {
    std::string causes =
        fmt::format("{} overwritten unread, {} half written at death",
                    FormatGrouped(sum.lost_overwritten), FormatGrouped(sum.lost_at_death));
    const auto add = [&](std::uint64_t lost, const char* cause) {
      if (lost > 0) causes += fmt::format(", {} {}", FormatGrouped(lost), cause);
    };
    add(sum.lost_released, "given up for room");
    add(sum.lost_damaged, "damaged on their way");
    add(sum.lost_no_memory, "for want of memory in the daemon");
    std::string who;
    for (const live::Session* session : job.sessions) {
      if (session->counters.lost() == 0) continue;
      who += (who.empty() ? "" : ", ") + RankText(*session);
    }
    text = style.Yellow(fmt::format("lost {} ({}; {})", FormatGrouped(sum.lost()), causes, who));
  }
  if (sum.overwrote_unread > 0) {
    text += style.Yellow(fmt::format("  gave up waiting {} times", sum.overwrote_unread));
  }
  if (sum.waits > 0) {
    text += fmt::format("  waited {} times, {:.1f} ms in all", FormatGrouped(sum.waits),
                        static_cast<double>(sum.wait_ns) * 1e-6);
  }
  return text;
}

std::string RingsText(const live::JobRanks& job, const Style& style) {
  const layout::Counters sum = job.Counted();
  std::uint64_t bytes = 0;
  std::uint64_t device_bytes = 0;
  for (const live::Session* session : job.sessions) {
    bytes += session->shm_bytes;
    device_bytes += session->device_bytes;
  }
  const std::string on_device =
      device_bytes == 0 ? ""
                        : fmt::format("{} of device memory  ", numerics::FormatBytes(device_bytes));
  return fmt::format("{} shared memory  {}{} snapshot{}, {} read, {} kept  ",
                     numerics::FormatBytes(bytes), on_device, FormatGrouped(sum.produced),
                     sum.produced == 1 ? "" : "s", FormatGrouped(sum.consumed),
                     FormatGrouped(sum.kept)) +
         LossText(job, style);
}

// Which lane, and why not the direct one, because users can change that.
std::string LanesText(const live::JobRanks& job) {
  std::map<std::string, std::uint64_t> uses;
  for (const live::Session* session : job.sessions) {
    for (const live::LaneUse& use : session->lanes) {
      const std::string reason =
          use.reason.empty() ? "" : fmt::format(" ({})", Printable(use.reason));
      uses[std::string(NameOf(use.lane)) + reason] += use.slots;
    }
  }
  std::string text;
  for (const auto& [name, slots] : uses) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", slots, name);
  }
  return text;
}

void AppendFirst(const char* what, const live::Session& session,
                 const std::optional<live::FirstNonfinite>& first, const Style& style,
                 std::string* out) {
  if (!first) return;
  *out +=
      fmt::format("         {} {} {}{}, {} element{}", style.Red(fmt::format("first {}:", what)),
                  Printable(SlotText(first->slot)), first->slot.counts_calls() ? "in call " : "@",
                  first->replay, FormatGrouped(first->count), first->count == 1 ? "" : "s");
  const std::string hint =
      fmt::format("cgdebug-cli show -s {} {}", session.key,
                  ShellWord(SlotText(first->slot) + ReplayMark(first->slot, first->replay)));
  if (first->kept == live::FirstNonfinite::Kept::kNothing) {
    *out += fmt::format("  (another daemon read it; if the job's ring still has it: {})\n", hint);
    return;
  }
  *out += fmt::format(
      "  -> {}{}\n", hint,
      first->kept == live::FirstNonfinite::Kept::kStatistics ? "  (its statistics)" : "");
}

// "replicas: 640 compared, the same on 2 ranks".
std::string ReplicasText(const live::JobRanks& job, const Style& style) {
  live::ReplicaCounts sum;
  for (const live::Session* session : job.sessions) {
    sum.compared += session->replicas.compared;
    sum.different += session->replicas.different;
    sum.close += session->replicas.close;
    sum.unknown += session->replicas.unknown;
    sum.incomplete += session->replicas.incomplete;
  }
  if (sum.compared + sum.incomplete == 0) return "";
  std::string text = fmt::format("{} compared", FormatGrouped(sum.compared));
  if (sum.different > 0) {
    text += "  " + style.Red(fmt::format("{} differ", FormatGrouped(sum.different)));
  }
  if (sum.close > 0) text += fmt::format("  {} close, not equal", FormatGrouped(sum.close));
  if (sum.unknown > 0) {
    text += "  " + style.Yellow(fmt::format("{} differ, by how much is not known",
                                            FormatGrouped(sum.unknown)));
  }
  if (sum.incomplete > 0) {
    text += "  " + style.Yellow(fmt::format("{} not on all ranks: one lacked them or came too late",
                                            FormatGrouped(sum.incomplete)));
  } else if (sum.different + sum.close + sum.unknown == 0) {
    text += "  the same on all ranks of this machine";
  }
  return fmt::format("{} {}\n", style.Bold("replicas"), text);
}

std::string JobText(const live::JobRanks& job, const live::JobRanks& all, const Style& style) {
  const layout::Counters sum = job.Counted();
  std::uint64_t probes = 0, nonfinite = 0, failed = 0, unseen = 0;
  const std::vector<std::string> not_seen = live::NotSeenTexts(job.sessions);
  const std::string masks = live::MasksText(job.sessions);
  for (const live::Session* session : job.sessions) {
    probes += session->probes;
    nonfinite += session->nonfinite_probes;
    failed += session->failed_probes;
    unseen += session->unseen_probes;
  }
  // Values that stayed on the device, and replays that the live control left out, nobody saw.
  const bool is_all_seen = sum.lost() == 0 && sum.consumed >= sum.produced && not_seen.empty() &&
                           unseen == 0 && sum.suppressed == 0;
  std::string out = fmt::format("{}  {}  {}  {}\n", style.Bold("session"), Printable(job.name),
                                StatesText(job, all), ReplayText(job));
  out += fmt::format("{}    {}\n", style.Bold("rings"), RingsText(job, style));
  out += fmt::format("{}   {}", style.Bold("probes"), probes);
  out += nonfinite > 0 ? style.Red(fmt::format("  {} saw NaN or Inf", nonfinite))
         : is_all_seen ? (masks.empty() ? "  all finite" : "  none saw NaN or Inf")
                       : "  none saw NaN or Inf, in what was read";
  if (failed > 0) out += style.Red(fmt::format("  {} failed a comparison", failed));
  if (nonfinite > 0) {
    const live::Session& one = *job.sessions.front();
    out += fmt::format("  -> cgdebug-cli check {}: whether one is a fault",
                       ShellWord(job.sessions.size() == 1 ? one.key : one.run_id));
  }
  out += "\n";
  if (!masks.empty()) out += fmt::format("         {}\n", Printable(masks));
  for (const std::string& text : not_seen) {
    out += fmt::format("{} {}\n", style.Bold("not seen"), style.Yellow(Printable(text)));
  }
  if (const std::string lanes = LanesText(job); !lanes.empty()) {
    out += fmt::format("{}    {}\n", style.Bold("lanes"), lanes);
  }
  out += ReplicasText(job, style);
  for (const live::Session* session : job.sessions) {
    AppendFirst("NaN", *session, session->first_nan, style, &out);
    AppendFirst("Inf", *session, session->first_inf, style, &out);
    if (session->found_replica.empty()) continue;
    out += fmt::format("         {}\n", style.Red(Printable(session->found_replica)));
  }
  return out;
}

// Of the jobs on this machine that take questions.
std::string KeptText(const Context& context, const live::JobRanks& job) {
  std::string out;
  for (const live::Session* session : job.sessions) {
    if (session->state != live::SessionState::kAlive) continue;
    const KeptReplays kept = KeptReplaysOf(context, session->pid);
    if (kept.graphs == 0) continue;
    out += fmt::format(
        "{}     the last replays of {}{}, {} of the device  -> cgdebug-cli ask {} --list\n",
        context.out.Bold("kept"), GroupedCount(kept.graphs, "graph"),
        kept.frozen_at > 0 ? fmt::format(", frozen at replay {}", kept.frozen_at) : "",
        numerics::FormatBytes(kept.bytes), session->pid);
  }
  return out;
}

std::string DaemonText(const live::Status& status, const Style& style) {
  const double up_s = live::SecondsSince(status.started_ns);
  std::string out = fmt::format(
      "{}   up {}  pid {}  cpu {:.1f}%  rss {}  {}  socket {}\n", style.Bold("daemon"),
      FormatDuration(up_s), status.pid, up_s > 0 ? 100 * status.cpu_seconds / up_s : 0.0,
      numerics::FormatBytes(status.rss_bytes), Printable(status.version), status.socket);
  if (status.memory_limit_bytes > 0) {
    out += fmt::format("{}   {} of {} for last values\n", style.Bold("memory"),
                       numerics::FormatBytes(status.memory_bytes),
                       numerics::FormatBytes(status.memory_limit_bytes));
  }
  if (status.shm_total_bytes > 0) {
    const bool is_low = status.shm_free_bytes < status.shm_total_bytes / 10;
    const std::string text =
        fmt::format("{} of {} free", numerics::FormatBytes(status.shm_free_bytes),
                    numerics::FormatBytes(status.shm_total_bytes));
    out += fmt::format("{} {}\n", style.Bold("/dev/shm"),
                       is_low ? style.Yellow(text + "  -> cgdebug-cli doctor") : text);
  }
  return out;
}

constexpr std::size_t kMostSkipped = 3;  // that are shown without -a

struct StatusOptions {
  std::string selector;
  bool all = false;
};

// Keeps only what belongs to these sessions.
void LeaveOnly(const std::vector<live::Session>& sessions, live::Status* status) {
  status->skipped.clear();
  std::set<std::string> labels;
  for (const live::Session& session : sessions) labels.insert(session.label);
  std::erase_if(status->recordings, [&](const live::Recording& recording) {
    const auto is_meant = [&](const std::string& label) { return labels.contains(label); };
    return std::ranges::none_of(recording.sessions, is_meant);
  });
}

int RunStatus(Context& context, const StatusOptions& options) {
  if (const int failed = context.Connect()) return failed;
  const std::string& wanted = context.SessionOr(options.selector);
  Result<live::Status> status = live::GetStatus(context.client(), wanted);
  if (!status.ok()) return context.Fail(status.error());
  std::vector<live::Session> sessions;
  for (const live::Session& session : status->sessions) {
    if (context.ranks.Contains(session.rank)) sessions.push_back(session);
  }
  if (sessions.empty() && !context.ranks.selects_all()) {
    return context.Fail(kExitNoMatch, "no session is on these ranks. Type: cgdebug-cli ps -a");
  }
  std::size_t hidden = 0;
  if (!wanted.empty()) {
    LeaveOnly(sessions, &*status);
  } else if (!options.all) {
    std::vector<live::Session> current = live::Current(sessions);
    hidden = sessions.size() - current.size();
    sessions = std::move(current);
  }
  if (context.options.json) {
    status->sessions = sessions;
    Context::PrintJson(ToJson(*status));
    return kExitOk;
  }
  std::string out = DaemonText(*status, context.out);
  // The answer about one session leaves out the other ranks of its job.
  const Result<std::vector<live::Session>> every = live::ListSessions(context.client());
  if (!every.ok()) return context.Fail(every.error());
  const std::vector<live::JobRanks> known = live::GroupByJob(*every);
  for (const live::JobRanks& job : live::GroupByJob(sessions)) {
    const auto all = std::ranges::find(known, job.name, &live::JobRanks::name);
    out += JobText(job, all == known.end() ? job : *all, context.out);
    out += KeptText(context, job);
  }
  if (sessions.empty()) {
    out += fmt::format("{}  none\n", context.out.Bold("session"));
  }
  for (const live::Recording& recording : status->recordings) {
    out += fmt::format("{} {}: {}\n", context.out.Bold("recording"), Printable(recording.directory),
                       RecordingText(recording, context.out));
    if (recording.error.empty()) continue;
    out += fmt::format("         {}: {}\n", context.out.Red(recording.state),
                       Printable(recording.error));
  }
  const std::size_t skipped_shown =
      options.all ? status->skipped.size() : std::min(status->skipped.size(), kMostSkipped);
  for (const live::Skipped& file : std::span(status->skipped).first(skipped_shown)) {
    out += fmt::format("{}  {}: {}\n", context.out.Yellow("skipped"), Printable(file.path),
                       Printable(file.reason));
  }
  Context::Print(out);
  if (skipped_shown < status->skipped.size()) {
    context.Note(fmt::format("and {} more that this daemon does not read: {}",
                             status->skipped.size() - skipped_shown, context.Again("-a")));
  }
  if (hidden > 0) context.Note(fmt::format("{} more ended: {}", hidden, context.Again("-a")));
  if (sessions.empty()) context.Hint("cgdebug-cli run -- python train.py");
  return kExitOk;
}

}  // namespace

RunFunction AddStatus(CLI::App& app) {
  auto options = std::make_shared<StatusOptions>();
  app.add_option("SESSION", options->selector,
                 "key, label, run id or pid; default: the jobs that are alive");
  app.add_flag("-a,--all", options->all, "also jobs that ended");
  return [options](Context& context) { return RunStatus(context, *options); };
}

}  // namespace cgdebug::cli
