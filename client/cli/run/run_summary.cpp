#include "client/cli/run/run_summary.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <optional>

#include "client/analysis/ops/between_calls.h"
#include "client/cli/exit_codes.h"
#include "client/cli/views/tensor/snapshot_text.h"

namespace cgdebug::cli {
namespace {

constexpr const char* kIndent = "\n         ";
constexpr std::size_t kUnseenNames = 4;
constexpr std::size_t kNotSeenLines = 4;

// "SIGKILL".
std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

constexpr std::string_view kNan = "NaN", kInf = "Inf";

// The first NaN or Inf of one session.
struct Finding {
  std::string_view what;
  const live::Session* session;
  const live::FirstNonfinite* first;
};

// By the time at which their replays began, and in one replay by graph order. Between the eager
// calls of two ranks the place in the program decides: what one sends to the other is in both at
// once.
bool IsEarlier(const RunSummary& summary, const Finding& a, const Finding& b) {
  if (a.session != b.session && a.first->slot.counts_calls() && b.first->slot.counts_calls()) {
    const auto place = [&](const Finding& one) {
      const std::uint64_t order = one.first->slot.order;
      const auto row = summary.rows.find({one.session->key, order});
      return std::pair(one.first->replay, row == summary.rows.end() ? order : row->second);
    };
    return place(a) < place(b);
  }
  return std::pair(a.first->serial, a.first->slot.order) <
         std::pair(b.first->serial, b.first->slot.order);
}

// The earliest NaN and the earliest Inf of all ranks, the earlier one first.
std::vector<Finding> Earliest(const RunSummary& summary) {
  const auto is_earlier = [&](const Finding& a, const Finding& b) {
    return IsEarlier(summary, a, b);
  };
  std::vector<Finding> nan, inf;
  for (const live::Session& session : summary.sessions) {
    if (session.first_nan) nan.push_back({kNan, &session, &*session.first_nan});
    if (session.first_inf) inf.push_back({kInf, &session, &*session.first_inf});
  }
  std::vector<Finding> earliest;
  for (const std::vector<Finding>& one : {inf, nan}) {
    if (!one.empty()) earliest.push_back(*std::ranges::min_element(one, is_earlier));
  }
  std::ranges::stable_sort(earliest, is_earlier);
  return earliest;
}

// Its probes were never reached.
bool HasNothing(const RunSummary& summary) {
  return summary.Replays() == 0 && summary.Snapshots() == 0;
}

std::string FindingText(const RunSummary& summary, const Finding& finding) {
  const live::FirstNonfinite& first = *finding.first;
  const auto next = summary.next_calls.find({finding.session->key, first.slot.order});
  std::string text =
      fmt::format("first {}: {} {}", finding.what, Printable(SlotText(first.slot)),
                  analysis::WhenMark(first.slot, first.replay,
                                     next == summary.next_calls.end() ? 0 : next->second));
  if (finding.session->rank >= 0) text += fmt::format(" on rank {}", finding.session->rank);
  return text;
}

// The sessions, that of the earliest finding first.
std::vector<const live::Session*> InOrderOfFindings(const RunSummary& summary) {
  std::vector<const live::Session*> sessions;
  if (const std::vector<Finding> found = Earliest(summary); !found.empty()) {
    sessions.push_back(found.front().session);
  }
  for (const live::Session& session : summary.sessions) {
    if (sessions.empty() || &session != sessions.front()) sessions.push_back(&session);
  }
  return sessions;
}

// What made the run fail, as the job was told.
std::vector<std::string> Sentences(const RunSummary& summary, const FailOn& fail_on) {
  std::vector<std::string> sentences;
  for (const live::Session* const session : InOrderOfFindings(summary)) {
    for (const auto& [wanted, sentence] :
         {std::pair(fail_on.nan, session->found_nan), std::pair(fail_on.inf, session->found_inf),
          std::pair(fail_on.mismatch, session->found_mismatch),
          std::pair(fail_on.replica, session->found_replica)}) {
      if (wanted && !sentence.empty()) sentences.push_back(sentence);
    }
  }
  return sentences;
}

// An earlier daemon that found one took its counts along.
bool HasUnequalReplica(const RunSummary& summary) {
  return summary.Replicas().different > 0 ||
         std::ranges::any_of(summary.sessions, [](const live::Session& session) {
           return !session.found_replica.empty();
         });
}

bool HasFound(const RunSummary& summary, const FailOn& fail_on) {
  const auto any = [&](auto first) {
    return std::ranges::any_of(summary.sessions, [&](const live::Session& session) {
      return (session.*first).has_value();
    });
  };
  return (fail_on.nan && any(&live::Session::first_nan)) ||
         (fail_on.inf && any(&live::Session::first_inf)) ||
         (fail_on.mismatch && summary.FailedProbes() > 0) ||
         (fail_on.replica && HasUnequalReplica(summary));
}

// Whether there is a NaN or Inf that may be what was asked for, or have an excuse.
bool IsOpen(const RunSummary& summary, const FailOn& fail_on) {
  return (fail_on.nan || fail_on.inf) && summary.open > 0;
}

// Whether replicas were asked for, and some of them may differ unseen.
bool LacksReplicas(const RunSummary& summary, const FailOn& fail_on) {
  const live::ReplicaCounts replicas = summary.Replicas();
  return fail_on.replica && (replicas.incomplete > 0 || replicas.waiting > 0 ||
                             replicas.unknown > 0 || replicas.compared == 0);
}

// Whether values stayed in device memory that might be what was asked for. What is compared there
// is compared by its own probe.
bool LacksLooks(const RunSummary& summary, const FailOn& fail_on) {
  return (fail_on.nan || fail_on.inf || fail_on.replica) && summary.UnseenProbes() > 0;
}

// Whether each snapshot was looked at, so that no NaN or Inf found means that there was none.
bool SawAll(const RunSummary& summary) {
  return summary.complete && summary.outliving.empty() && summary.Snapshots() > 0 &&
         summary.LostSnapshots() == 0 && summary.LeftOut() == 0 && summary.UnseenProbes() == 0 &&
         summary.NotSeen().empty();
}

// "a, b and others".
std::string UnseenNames(const RunSummary& summary) {
  std::vector<std::string> names;
  bool has_more = false;
  for (const live::Session& session : summary.sessions) {
    has_more |= session.unseen_probes > session.unseen.size();
    for (const std::string& name : session.unseen) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  has_more |= names.size() > kUnseenNames;
  names.resize(std::min(names.size(), kUnseenNames));
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + Printable(name);
  return text + (has_more ? " and others" : "");
}

template <typename Get>
std::uint64_t Sum(const RunSummary& summary, Get get) {
  std::uint64_t sum = 0;
  for (const live::Session& session : summary.sessions) sum += get(session);
  return sum;
}

}  // namespace

std::uint64_t RunSummary::Replays() const {
  std::uint64_t newest = 0;
  for (const live::Session& session : sessions) newest = std::max(newest, session.replay);
  return newest;
}
const char* RunSummary::ReplayWord() const {
  const std::uint64_t newest = Replays();
  for (const live::Session& session : sessions) {
    if (session.replay == newest) return session.replay_word();
  }
  return "replay";
}
std::uint64_t RunSummary::Snapshots() const {
  return Sum(*this, [](const live::Session& session) { return session.counters.consumed; });
}
std::uint64_t RunSummary::LostSnapshots() const {
  return Sum(*this, [](const live::Session& session) { return session.counters.lost(); });
}
std::uint64_t RunSummary::LeftOut() const {
  return Sum(*this, [](const live::Session& session) { return session.counters.suppressed; });
}
std::uint64_t RunSummary::NonfiniteProbes() const {
  return Sum(*this, [](const live::Session& session) { return session.nonfinite_probes; });
}
std::uint64_t RunSummary::FailedProbes() const {
  return Sum(*this, [](const live::Session& session) { return session.failed_probes; });
}
std::uint64_t RunSummary::UnseenProbes() const {
  return Sum(*this, [](const live::Session& session) { return session.unseen_probes; });
}

std::vector<std::string> RunSummary::NotSeen() const { return live::NotSeenTexts(SessionPtrs()); }

std::vector<const live::Session*> RunSummary::SessionPtrs() const {
  std::vector<const live::Session*> all;
  for (const live::Session& session : sessions) all.push_back(&session);
  return all;
}

live::ReplicaCounts RunSummary::Replicas() const {
  live::ReplicaCounts sum;
  for (const live::Session& session : sessions) {
    sum.compared += session.replicas.compared;
    sum.different += session.replicas.different;
    sum.close += session.replicas.close;
    sum.unknown += session.replicas.unknown;
    sum.incomplete += session.replicas.incomplete;
    sum.waiting += session.replicas.waiting;
  }
  return sum;
}

int ExitCodeOf(const RunSummary& summary, const FailOn& fail_on) {
  if (summary.job_exit_code != 0) return summary.job_exit_code;
  if (HasFound(summary, fail_on)) return kExitFound;
  if (!summary.NotSeen().empty() || summary.is_unreachable || !summary.outliving.empty()) {
    return kExitInconclusive;
  }
  if (!fail_on.any()) return kExitOk;
  if (!summary.complete) return kExitInconclusive;
  if (summary.sessions.empty()) return kExitNoMatch;
  if (summary.LostSnapshots() > 0 || summary.LeftOut() > 0) return kExitInconclusive;
  if (HasNothing(summary) || IsOpen(summary, fail_on)) return kExitInconclusive;
  if (fail_on.mismatch && summary.not_compared_probes > 0) return kExitInconclusive;
  if (LacksLooks(summary, fail_on) || LacksReplicas(summary, fail_on)) return kExitInconclusive;
  return kExitOk;
}

namespace {

// What is not known of the snapshots, after "snapshots ".
std::string_view WhyInconclusive(const RunSummary& summary, const FailOn& fail_on) {
  return !summary.NotSeen().empty() ? "of probes were not looked at"
         : HasNothing(summary)      ? "never came"
         : IsOpen(summary, fail_on) ? "that may excuse a NaN or Inf are gone. Keep all: "
                                      "cgdebug-cli run -o DIR.cgrec"
         : summary.LostSnapshots() > 0 || !summary.complete ? "are missing"
         : summary.LeftOut() > 0 ? "were left out: a probe was turned off (cgdebug-cli set), or "
                                   "a trigger had stopped its ring"
         : LacksLooks(summary, fail_on) ? "were not looked at"
         : fail_on.replica && summary.Replicas().compared == 0
             ? "of replicas were not compared: no two ranks of this machine have one. Record on "
               "each machine and type: cgdebug-cli ranks FOLDER"
             : "were not compared";
}

// How the job ended, and what was seen of it.
std::string EndText(const RunSummary& summary, const Style& style) {
  std::string text = summary.job_signal != 0
                         ? style.Red("job was killed by " + SignalName(summary.job_signal))
                         : fmt::format("job exited {}", summary.job_exit_code);
  if (summary.sessions.empty() && summary.complete) {
    text += ". No probe was seen";
    text += summary.is_watched
                ? ": the job called no module of torch, or says above why none is watched."
                : ": it created none, reached none (outside of a capture, a probe needs "
                  "mode='always'), or not under this user on this node.";
  } else if (summary.sessions.empty() && summary.recorded > 0) {
    text += style.Yellow(
        fmt::format(". The daemon is gone, or does not answer: the recording has {}, and whether "
                    "the job had more is not known.",
                    GroupedCount(summary.recorded, "snapshot")));
  } else if (summary.sessions.empty()) {
    text += style.Yellow(
        ". The daemon has not answered in time: whether the job had a probe is not known.");
  } else {
    text +=
        fmt::format(" after {}. {} read, ", GroupedCount(summary.Replays(), summary.ReplayWord()),
                    GroupedCount(summary.Snapshots(), "snapshot"));
    const std::string lost = fmt::format("{} lost", FormatGrouped(summary.LostSnapshots()));
    text += (summary.LostSnapshots() > 0 ? style.Yellow(lost) : lost) + ".";
  }
  return text;
}

// NaN and Inf, and masks.
std::string NonfiniteLines(const RunSummary& summary, const Style& style) {
  std::string text;
  if (summary.NonfiniteProbes() > 0) {
    text += kIndent +
            style.Red(GroupedCount(summary.NonfiniteProbes(), "probe") + " saw non-finite values.");
    const std::vector<Finding> earliest = Earliest(summary);
    for (const Finding& finding : earliest) {
      // Behind a NaN, a mask of a row has NaN as well and is called an Inf: `check` has all of
      // them.
      const bool is_row = summary.rows.contains({finding.session->key, finding.first->slot.order});
      if (is_row && finding.what == kInf && earliest.front().what == kNan) continue;
      text += fmt::format("{}{}, {}", kIndent, FindingText(summary, finding),
                          GroupedCount(finding.first->count, "element"));
    }
    if (summary.open > 0) {
      text += kIndent + style.Yellow(fmt::format("Whether {} of them have an excuse is not known.",
                                                 summary.open));
    } else if (summary.is_checked && Earliest(summary).empty()) {
      text += fmt::format("{}Each has an excuse. Type: cgdebug-cli check {}", kIndent,
                          ShellWord(summary.sessions.front().run_id));
    }
  }
  const std::string masks = live::MasksText(summary.SessionPtrs());
  if (!masks.empty()) text += kIndent + Printable(masks);
  const bool has_nonfinite =
      summary.NonfiniteProbes() > 0 || !Earliest(summary).empty() || !masks.empty();
  if (summary.job_exit_code != 0 && !has_nonfinite && SawAll(summary)) {
    const std::uint64_t probes =
        Sum(summary, [](const live::Session& session) { return session.probes; });
    text += kIndent + fmt::format("No NaN or Inf in what {} saw.", GroupedCount(probes, "probe"));
  }
  return text;
}

// What did not match: what a probe expected, or another rank.
std::string MismatchLines(const RunSummary& summary, const Style& style) {
  std::string text;
  if (summary.FailedProbes() > 0) {
    text += kIndent +
            style.Red(GroupedCount(summary.FailedProbes(), "probe") + " failed a comparison.");
  }
  if (const std::uint64_t different = summary.Replicas().different; different > 0) {
    text += kIndent + style.Red(GroupedCount(different, "snapshot") +
                                " of replicas differed from those of other ranks.");
  }
  if (summary.not_compared_probes > 0) {
    text += kIndent + style.Yellow(GroupedCount(summary.not_compared_probes, "probe") +
                                   " had snapshots that were not compared.");
  }
  return text;
}

// What nobody looked at.
std::string NotSeenLines(const RunSummary& summary, const FailOn& fail_on, const Style& style) {
  std::string text;
  if (LacksLooks(summary, fail_on)) {
    text += kIndent + style.Yellow(fmt::format(
                          "Nobody has looked at the values of {} in device memory: {}.",
                          GroupedCount(summary.UnseenProbes(), "probe"), UnseenNames(summary)));
    text += fmt::format(
        "{}Give them TensorStats() too, or a trigger: cgdebug-cli run --on nan --fail-on nan -- "
        "...",
        kIndent);
  }
  const std::vector<std::string> not_seen = summary.NotSeen();
  for (std::size_t i = 0; i < std::min(not_seen.size(), kNotSeenLines); ++i) {
    text += kIndent + style.Yellow(Printable(not_seen[i]) + ".");
  }
  if (not_seen.size() > kNotSeenLines) {
    text += fmt::format("{}and {} more like these", kIndent, not_seen.size() - kNotSeenLines);
  }
  return text;
}

// What the daemon may not have read yet.
std::string UnreadLines(const RunSummary& summary, const Style& style) {
  std::string text;
  if (const std::size_t count = summary.outliving.size(); count > 0) {
    text += kIndent + style.Yellow(fmt::format(
                          "{} process{} of the job go{} on after it (pid {}): what comes is not "
                          "in here.",
                          count, count == 1 ? "" : "es", count == 1 ? "es" : "",
                          fmt::join(summary.outliving, ", ")));
  } else if (!summary.complete && !summary.sessions.empty()) {
    text +=
        kIndent + style.Yellow("The daemon has not read everything yet: these numbers may grow.");
  }
  return text;
}

// What --fail-on makes of it.
std::string FailOnLines(const RunSummary& summary, const FailOn& fail_on, const Style& style) {
  std::string text;
  const int code = ExitCodeOf(summary, fail_on);
  for (const std::string& sentence : Sentences(summary, fail_on)) {
    text += fmt::format("{}--fail-on: {}", kIndent, style.Red(Printable(sentence)));
  }
  if (code == kExitInconclusive && !fail_on.any()) {
    text += fmt::format("{}Not all that was to be seen was seen: exit {}.", kIndent, code);
  } else if (summary.job_exit_code == 0 && code == kExitInconclusive) {
    text += fmt::format("{}Nothing of --fail-on was found, but snapshots {}: exit {}.", kIndent,
                        WhyInconclusive(summary, fail_on), code);
  }
  return text;
}

}  // namespace

std::string SummaryText(const RunSummary& summary, const FailOn& fail_on, const Style& style) {
  return EndText(summary, style) + NonfiniteLines(summary, style) + MismatchLines(summary, style) +
         NotSeenLines(summary, fail_on, style) + UnreadLines(summary, style) +
         FailOnLines(summary, fail_on, style);
}

std::string FirstFinding(const RunSummary& summary) {
  const std::vector<Finding> found = Earliest(summary);
  return found.empty() ? "" : FindingText(summary, found.front());
}

std::string LogCommand(const RunSummary& summary, const std::string& recording) {
  const std::vector<Finding> found = Earliest(summary);
  if (found.empty()) return "";
  const auto is_row = [&](const Finding& finding) {
    return summary.rows.contains({finding.session->key, finding.first->slot.order});
  };
  // An Inf in a row may be one that no later row inherits.
  const bool are_rows = is_row(found.front()) && is_row(found.back());
  const Finding& finding = are_rows && found.back().what == kNan ? found.back() : found.front();
  if (!is_row(finding)) return "";
  const auto& [what, session, first] = finding;
  const bool is_kept = first->kept != live::FirstNonfinite::Kept::kNothing;
  if (recording.empty()) {
    return OpsCommandOf(session->key, first->slot, is_kept ? first->replay : 0);
  }
  if (first->slot.graph_id == 0 && !first->slot.counts_calls()) return "";
  const std::string of =
      summary.sessions.size() > 1 ? " -s " + ShellWord(session->key) : std::string();
  return OpsCommandOf(recording, first->slot, first->replay) + of;
}

std::vector<std::string> NextCommands(const RunSummary& summary,
                                      const std::vector<std::string>& log_ops,
                                      const std::string& watch_all, Recorded recorded) {
  std::vector<std::string> commands;
  std::optional<std::size_t> of_job;  // the one that asks the job what a recording tells as well
  const auto add_of_job = [&](std::string command) {
    of_job = commands.size();
    commands.push_back(std::move(command));
  };
  const auto add_logs = [&] { commands.insert(commands.end(), log_ops.begin(), log_ops.end()); };
  if (const std::vector<Finding> found = Earliest(summary); !found.empty()) {
    const auto& [what, session, first] = found.front();
    if (std::string log = LogCommand(summary); !log.empty()) {
      if (recorded != Recorded::kAll) commands.push_back(std::move(log));
    } else {
      if (first->kept == live::FirstNonfinite::Kept::kValues) {
        commands.push_back(
            fmt::format("cgdebug-cli show -s {} {} --where nan", session->key,
                        ShellWord(SlotText(first->slot) + ReplayMark(first->slot, first->replay))));
      } else {
        add_of_job("cgdebug-cli check " + ShellWord(session->key));
      }
      add_logs();
    }
  }
  if (summary.FailedProbes() > 0) {
    commands.push_back("cgdebug-cli tail --only mismatch -s " +
                       ShellWord(summary.sessions.front().run_id));
  }
  if (HasUnequalReplica(summary)) {
    commands.push_back("cgdebug-cli ranks -s " + ShellWord(summary.sessions.front().run_id));
  }
  if (summary.sessions.empty()) {
    if (summary.recorded > 0) return commands;  // the recording has its own hint
    const bool had_none = summary.complete && !watch_all.empty();
    commands.push_back(had_none ? watch_all : "cgdebug-cli doctor");
  } else if (commands.empty() && !summary.NotSeen().empty()) {
    add_of_job("cgdebug-cli check " + ShellWord(summary.sessions.front().key));
  } else if (commands.empty() && summary.job_exit_code != 0) {
    const live::Session& first = summary.sessions.front();
    const bool is_alone = summary.sessions.size() == 1 || first.run_id.empty();
    commands.push_back("cgdebug-cli where " + ShellWord(is_alone ? first.key : first.run_id));
    add_logs();
  } else if (commands.empty()) {
    add_of_job("cgdebug-cli probes -s " + ShellWord(summary.sessions.front().key));
    add_logs();
    if (!summary.earlier.empty()) {
      commands.push_back(fmt::format("cgdebug-cli why {} {}", ShellWord(summary.earlier),
                                     ShellWord(summary.sessions.front().key)));
    }
  }
  if (recorded != Recorded::kNothing && of_job) {
    commands.erase(commands.begin() + static_cast<std::ptrdiff_t>(*of_job));
  }
  return commands;
}

Json SummaryJson(const RunSummary& summary) {
  return {{"event", "summary"},
          {"job_exit_code", summary.job_exit_code},
          {"job_signal", summary.job_signal},
          {"complete", summary.complete},
          {"outliving", summary.outliving},
          {"replays", summary.Replays()},
          {"counts_calls", summary.ReplayWord() == std::string_view("call")},
          {"snapshots", summary.Snapshots()},
          {"lost", summary.LostSnapshots()},
          {"nonfinite_probes", summary.NonfiniteProbes()},
          {"failed_probes", summary.FailedProbes()},
          {"unseen_probes", summary.UnseenProbes()},
          {"replicas", FieldsJson(summary.Replicas())},
          {"not_compared_probes", summary.not_compared_probes},
          {"sessions", FieldJson(summary.sessions)}};
}

}  // namespace cgdebug::cli
