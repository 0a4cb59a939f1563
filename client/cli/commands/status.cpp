#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/analysis/align.h"
#include "client/cli/command.h"
#include "client/cli/views/json.h"
#include "client/cli/views/recording_text.h"
#include "client/cli/views/snapshot_text.h"
#include "client/live/messages.h"
#include "client/live/sessions.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

std::string RankText(const v1::Session& session) {
  return session.rank() < 0 ? fmt::format("pid {}", session.pid())
                            : fmt::format("rank {}", session.rank());
}

std::string StatesText(const live::JobRanks& job) {
  if (!job.has_ranks()) {
    std::map<v1::Session::State, std::vector<int>> pids;
    for (const v1::Session* session : job.sessions) {
      pids[session->state()].push_back(session->pid());
    }
    std::string text;
    for (const auto& [state, some] : pids) {
      text += fmt::format("{}{} (pid {})", text.empty() ? "" : ", ", live::StateText(state),
                          fmt::join(some, ", "));
    }
    return text;
  }
  std::map<v1::Session::State, std::set<std::uint64_t>> ranks;
  for (const v1::Session* session : job.sessions) {
    ranks[session->state()].insert(static_cast<std::uint64_t>(session->rank()));
  }
  std::string text = fmt::format("ranks {} ", live::RanksText(job));
  if (ranks.size() == 1) {
    text += live::StateText(ranks.begin()->first);
  } else {
    std::string states;
    for (const auto& [state, some] : ranks) {
      states +=
          fmt::format("{}{} {}", states.empty() ? "" : ", ",
                      analysis::RangesText({some.begin(), some.end()}), live::StateText(state));
    }
    text += "(" + states + ")";
  }
  const std::string missing = live::MissingRanksText(job);
  return missing.empty() ? text : text + "; " + missing;
}

std::string ReplayText(const live::JobRanks& job) {
  std::uint64_t newest = 0;
  for (const v1::Session* session : job.sessions) newest = std::max(newest, session->replay());
  std::string behind;
  for (const v1::Session* session : job.sessions) {
    if (session->replay() == newest) continue;
    behind +=
        fmt::format("{}{}: {}", behind.empty() ? "" : ", ", RankText(*session), session->replay());
  }
  std::string text = fmt::format("replay {}", newest);
  if (!behind.empty()) text += fmt::format(" ({})", behind);
  if (job.sessions.front()->step() >= 0) {
    text += fmt::format("  step {}", job.sessions.front()->step());
  }
  return text;
}

// Names the cause and the place of each loss: without them nobody could act on it.
std::string LossText(const live::JobRanks& job, const Style& style) {
  std::uint64_t overwritten = 0, at_death = 0, released = 0, damaged = 0, no_memory = 0;
  std::uint64_t unread = 0, waits = 0, wait_ns = 0;
  std::string who;
  for (const v1::Session* session : job.sessions) {
    const v1::Counters& counters = session->counters();
    overwritten += counters.lost_overwritten();
    at_death += counters.lost_at_death();
    released += counters.lost_released();
    damaged += counters.lost_damaged();
    no_memory += counters.lost_no_memory();
    unread += counters.overwrote_unread();
    waits += counters.waits();
    wait_ns += counters.wait_ns();
    if (live::CountersOf(counters).lost() > 0)
      who += (who.empty() ? "" : ", ") + RankText(*session);
  }
  std::string text = "lost 0";
  const std::uint64_t lost = overwritten + at_death + released + damaged + no_memory;
  if (lost > 0) {
    std::string causes = fmt::format("{} overwritten unread, {} half written at death",
                                     FormatGrouped(overwritten), FormatGrouped(at_death));
    if (released > 0) causes += fmt::format(", {} given up for room", FormatGrouped(released));
    if (damaged > 0) causes += fmt::format(", {} damaged on their way", FormatGrouped(damaged));
    if (no_memory > 0) {
      causes += fmt::format(", {} for want of memory in the daemon", FormatGrouped(no_memory));
    }
    text = fmt::format("lost {} ({}; {})", FormatGrouped(lost), causes, who);
    text = style.Yellow(text);
  }
  if (unread > 0) text += style.Yellow(fmt::format("  gave up waiting {} times", unread));
  if (waits > 0) {
    text += fmt::format("  waited {} times, {:.1f} ms in all", FormatGrouped(waits),
                        static_cast<double>(wait_ns) * 1e-6);
  }
  return text;
}

std::string RingsText(const live::JobRanks& job, const Style& style) {
  std::uint64_t bytes = 0, produced = 0, consumed = 0, kept = 0;
  for (const v1::Session* session : job.sessions) {
    bytes += session->shm_bytes();
    produced += session->counters().produced();
    consumed += session->counters().consumed();
    kept += session->counters().kept();
  }
  std::string text =
      fmt::format("{} shared memory  {} snapshot{}, {} read, {} kept  ",
                  numerics::FormatBytes(bytes), FormatGrouped(produced), produced == 1 ? "" : "s",
                  FormatGrouped(consumed), FormatGrouped(kept));
  return text + LossText(job, style);
}

// Which lane, and why not the direct one, because users can change that.
std::string LanesText(const live::JobRanks& job) {
  std::map<std::string, std::uint64_t> uses;
  for (const v1::Session* session : job.sessions) {
    for (const v1::LaneUse& use : session->lanes()) {
      const std::string reason =
          use.reason().empty() ? "" : fmt::format(" ({})", Printable(use.reason()));
      uses[live::LaneName(use.lane()) + reason] += use.slots();
    }
  }
  std::string text;
  for (const auto& [name, slots] : uses) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", slots, name);
  }
  return text;
}

void AppendFirst(const char* what, const v1::Session& session, const v1::FirstNonfinite& first,
                 const Style& style, std::string* out) {
  if (first.replay() == 0) return;
  *out += fmt::format("         {} {} @{}, {} element{}", style.Red(fmt::format("first {}:", what)),
                      Printable(SelectorOf(live::FirstOf(first))), first.replay(),
                      FormatGrouped(first.count()), first.count() == 1 ? "" : "s");
  const std::string hint = fmt::format(
      "cgdebug-cli show -s {} {}", session.key(),
      ShellWord(fmt::format("{}@{}", SelectorOf(live::FirstOf(first)), first.replay())));
  if (first.kept() == v1::FirstNonfinite::NOTHING) {
    *out += fmt::format("  (another daemon read it; if the job's ring still has it: {})\n", hint);
    return;
  }
  *out += fmt::format("  -> {}{}\n", hint,
                      first.kept() == v1::FirstNonfinite::STATISTICS ? "  (its statistics)" : "");
}

std::string JobText(const live::JobRanks& job, const Style& style) {
  std::uint64_t probes = 0, nonfinite = 0, failed = 0, lost = 0, produced = 0, consumed = 0;
  for (const v1::Session* session : job.sessions) {
    probes += session->probe_count();
    nonfinite += session->nonfinite_probes();
    failed += session->failed_probes();
    lost += live::CountersOf(session->counters()).lost();
    produced += session->counters().produced();
    consumed += session->counters().consumed();
  }
  std::string out = fmt::format("{}  {}  {}  {}\n", style.Bold("session"), Printable(job.name),
                                StatesText(job), ReplayText(job));
  out += fmt::format("{}    {}\n", style.Bold("rings"), RingsText(job, style));
  out += fmt::format("{}   {}", style.Bold("probes"), probes);
  out += nonfinite > 0 ? style.Red(fmt::format("  {} saw NaN or Inf", nonfinite))
         : lost == 0 && consumed >= produced ? "  all finite"
                                             : "  none saw NaN or Inf, in what was read";
  if (failed > 0) out += style.Red(fmt::format("  {} failed a comparison", failed));
  out += "\n";
  if (const std::string lanes = LanesText(job); !lanes.empty()) {
    out += fmt::format("{}    {}\n", style.Bold("lanes"), lanes);
  }
  for (const v1::Session* session : job.sessions) {
    AppendFirst("NaN", *session, session->first_nan(), style, &out);
    AppendFirst("Inf", *session, session->first_inf(), style, &out);
  }
  return out;
}

std::string DaemonText(const v1::StatusReply& status, const Style& style) {
  const double up_s = live::SecondsSince(status.started_ns());
  std::string out = fmt::format(
      "{}   up {}  pid {}  cpu {:.1f}%  rss {}  {}  socket {}\n", style.Bold("daemon"),
      FormatDuration(up_s), status.pid(), up_s > 0 ? 100 * status.cpu_seconds() / up_s : 0.0,
      numerics::FormatBytes(status.rss_bytes()), Printable(status.version()), status.socket());
  if (status.memory_limit_bytes() > 0) {
    out += fmt::format("{}   {} of {} for last values\n", style.Bold("memory"),
                       numerics::FormatBytes(status.memory_bytes()),
                       numerics::FormatBytes(status.memory_limit_bytes()));
  }
  if (status.shm_total_bytes() > 0) {
    const bool is_low = status.shm_free_bytes() < status.shm_total_bytes() / 10;
    const std::string text =
        fmt::format("{} of {} free", numerics::FormatBytes(status.shm_free_bytes()),
                    numerics::FormatBytes(status.shm_total_bytes()));
    out += fmt::format("{} {}\n", style.Bold("/dev/shm"),
                       is_low ? style.Yellow(text + "  -> cgdebug-cli doctor") : text);
  }
  return out;
}

std::string PlainText(const v1::StatusReply& status, const std::vector<v1::Session>& sessions) {
  std::string out = fmt::format("daemon\t{}\t{}\t{}\t{}\n", status.pid(), status.version(),
                                status.rss_bytes(), status.socket());
  for (const v1::Session& session : sessions) {
    out +=
        fmt::format("session\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", session.key(),
                    Printable(session.label()), session.rank(), live::StateText(session.state()),
                    session.replay(), session.counters().produced(), session.counters().consumed(),
                    live::CountersOf(session.counters()).lost(), session.nonfinite_probes());
  }
  for (const v1::Recording& recording : status.recordings()) {
    out += fmt::format("recording\t{}\t{}\t{}\t{}\t{}\n", Printable(recording.directory()),
                       recording.snapshots(), recording.durable_snapshots(), recording.lost(),
                       recording.bytes());
  }
  for (const v1::Skipped& file : status.skipped()) {
    out += fmt::format("skipped\t{}\t{}\n", Printable(file.path()), Printable(file.reason()));
  }
  return out;
}

struct StatusOptions {
  std::string selector;
  bool all = false;
};

// Keeps only what belongs to these sessions.
void LeaveOnly(const std::vector<v1::Session>& sessions, v1::StatusReply* status) {
  status->clear_skipped();
  std::set<std::string> labels;
  for (const v1::Session& session : sessions) labels.insert(session.label());
  std::vector<v1::Recording> recordings;
  for (const v1::Recording& recording : status->recordings()) {
    const auto is_meant = [&](const std::string& label) { return labels.contains(label); };
    if (std::ranges::any_of(recording.sessions(), is_meant)) recordings.push_back(recording);
  }
  status->mutable_recordings()->Assign(recordings.begin(), recordings.end());
}

int RunStatus(Context& context, const StatusOptions& options) {
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  v1::StatusRequest request;
  request.set_session(options.selector.empty() ? context.options.session : options.selector);
  Result<v1::StatusReply> status = context.client().Status(request);
  if (!status.ok()) return context.Fail(status.error());
  std::vector<v1::Session> sessions;
  for (const v1::Session& session : status->sessions()) {
    if (context.ranks.Contains(session.rank())) sessions.push_back(session);
  }
  if (sessions.empty() && !context.ranks.selects_all()) {
    return context.Fail(kExitNoMatch, "no session is on these ranks. Type: cgdebug-cli ps -a");
  }
  std::size_t hidden = 0;
  if (!request.session().empty()) {
    LeaveOnly(sessions, &*status);
  } else if (!options.all) {
    std::vector<v1::Session> current = live::Current(sessions);
    hidden = sessions.size() - current.size();
    sessions = std::move(current);
  }
  if (context.options.json) {
    status->mutable_sessions()->Assign(sessions.begin(), sessions.end());
    Context::Print(Dump(ToJson(*status), /*indented=*/true) + "\n");
    return kExitOk;
  }
  if (context.options.plain) {
    Context::Print(PlainText(*status, sessions));
    return kExitOk;
  }
  std::string out = DaemonText(*status, context.out);
  for (const live::JobRanks& job : live::GroupByJob(sessions)) out += JobText(job, context.out);
  if (sessions.empty()) {
    out += fmt::format("{}  none\n", context.out.Bold("session"));
  }
  for (const v1::Recording& recording : status->recordings()) {
    out += fmt::format("{} {}: {}\n", context.out.Bold("recording"),
                       Printable(recording.directory()), RecordingText(recording, context.out));
    if (recording.error().empty()) continue;
    out += fmt::format("         {}: {}\n", context.out.Red(recording.state()),
                       Printable(recording.error()));
  }
  for (const v1::Skipped& file : status->skipped()) {
    out += fmt::format("{}  {}: {}\n", context.out.Yellow("skipped"), Printable(file.path()),
                       Printable(file.reason()));
  }
  Context::Print(out);
  if (hidden > 0) context.Note(fmt::format("{} more ended: cgdebug-cli status -a", hidden));
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
