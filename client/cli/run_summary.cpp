#include "client/cli/run_summary.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>

#include "client/cli/exit_codes.h"
#include "client/cli/snapshot_text.h"

namespace cgdebug::cli {
namespace {

constexpr const char* kIndent = "\n         ";

std::string Plural(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", FormatGrouped(count), noun, count == 1 ? "" : "s");
}

// "SIGKILL".
std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

using Which = const v1::FirstNonfinite& (v1::Session::*)() const;

// The session that was the earliest, null when none has any.
const v1::Session* Earliest(const RunSummary& summary, Which which) {
  const v1::Session* earliest = nullptr;
  for (const v1::Session& session : summary.sessions) {
    const v1::FirstNonfinite& first = (session.*which)();
    if (!first.present()) continue;
    if (earliest == nullptr || first.replay() < (earliest->*which)().replay()) earliest = &session;
  }
  return earliest;
}

std::string FirstText(const char* what, const RunSummary& summary, Which which) {
  const v1::Session* session = Earliest(summary, which);
  if (session == nullptr) return "";
  const v1::FirstNonfinite& first = (session->*which)();
  return fmt::format("{}first {}: {} @{}, {}", kIndent, what, Printable(first.probe()),
                     first.replay(), Plural(first.count(), "element"));
}

bool HasFound(const RunSummary& summary, const FailOn& fail_on) {
  return (fail_on.nan && Earliest(summary, &v1::Session::first_nan) != nullptr) ||
         (fail_on.inf && Earliest(summary, &v1::Session::first_inf) != nullptr) ||
         (fail_on.compare && summary.FailedProbes() > 0);
}

template <typename Get>
std::uint64_t Sum(const RunSummary& summary, Get get) {
  std::uint64_t sum = 0;
  for (const v1::Session& session : summary.sessions) sum += get(session);
  return sum;
}

}  // namespace

std::uint64_t RunSummary::Replays() const {
  std::uint64_t newest = 0;
  for (const v1::Session& session : sessions) newest = std::max(newest, session.replay());
  return newest;
}
std::uint64_t RunSummary::Snapshots() const {
  return Sum(*this, [](const v1::Session& session) { return session.counters().consumed(); });
}
std::uint64_t RunSummary::LostSnapshots() const {
  return Sum(*this, [](const v1::Session& session) { return Lost(session.counters()); });
}
std::uint64_t RunSummary::NonfiniteProbes() const {
  return Sum(*this, [](const v1::Session& session) { return session.nonfinite_probes(); });
}
std::uint64_t RunSummary::FailedProbes() const {
  return Sum(*this, [](const v1::Session& session) { return session.failed_probes(); });
}

int ExitCodeOf(const RunSummary& summary, const FailOn& fail_on) {
  if (summary.job_exit_code != 0) return summary.job_exit_code;
  if (!fail_on.any()) return kExitOk;
  if (HasFound(summary, fail_on)) return kExitFound;
  if (summary.sessions.empty()) return kExitNoMatch;
  if (summary.LostSnapshots() > 0 || !summary.complete) return kExitInconclusive;
  if (fail_on.compare && summary.not_compared_probes > 0) return kExitInconclusive;
  return kExitOk;
}

std::string SummaryText(const RunSummary& summary, const FailOn& fail_on, const Style& style) {
  std::string text = summary.job_signal != 0
                         ? style.Red("job was killed by " + SignalName(summary.job_signal))
                         : fmt::format("job exited {}", summary.job_exit_code);
  if (summary.sessions.empty()) {
    text += ". No probe was seen: it created none, or not under this user on this node.";
  } else {
    text += fmt::format(" after {}. {} read, ", Plural(summary.Replays(), "replay"),
                        Plural(summary.Snapshots(), "snapshot"));
    const std::string lost = fmt::format("{} lost", FormatGrouped(summary.LostSnapshots()));
    text += (summary.LostSnapshots() > 0 ? style.Yellow(lost) : lost) + ".";
  }
  if (summary.NonfiniteProbes() > 0) {
    text +=
        kIndent + style.Red(Plural(summary.NonfiniteProbes(), "probe") + " saw non-finite values.");
    text += FirstText("NaN", summary, &v1::Session::first_nan);
    text += FirstText("Inf", summary, &v1::Session::first_inf);
  }
  if (summary.FailedProbes() > 0) {
    text += kIndent + style.Red(Plural(summary.FailedProbes(), "probe") + " failed a comparison.");
  }
  if (summary.not_compared_probes > 0) {
    text += kIndent + style.Yellow(Plural(summary.not_compared_probes, "probe") +
                                   " had snapshots that were not compared.");
  }
  if (!summary.complete && !summary.sessions.empty()) {
    text +=
        kIndent + style.Yellow("The daemon has not read everything yet: these numbers may grow.");
  }
  const int code = ExitCodeOf(summary, fail_on);
  if (summary.job_exit_code == 0 && code == kExitInconclusive) {
    const bool is_missing = summary.LostSnapshots() > 0 || !summary.complete;
    text += fmt::format("{}Nothing of --fail-on was found, but snapshots {}: exit {}.", kIndent,
                        is_missing ? "are missing" : "were not compared", code);
  }
  return text;
}

std::vector<std::string> NextCommands(const RunSummary& summary) {
  std::vector<std::string> commands;
  for (const Which which : {&v1::Session::first_nan, &v1::Session::first_inf}) {
    const v1::Session* session = Earliest(summary, which);
    if (session == nullptr || !commands.empty()) continue;
    const v1::FirstNonfinite& first = (session->*which)();
    commands.push_back(fmt::format("cgdebug-cli show -s {} {} --where nonfinite", session->key(),
                                   ShellWord(fmt::format("{}@{}", first.probe(), first.replay()))));
  }
  if (summary.FailedProbes() > 0) {
    commands.push_back("cgdebug-cli tail --only fail -s " +
                       ShellWord(summary.sessions.front().run_id()));
  }
  if (summary.sessions.empty()) {
    commands.push_back("cgdebug-cli doctor");
  } else if (commands.empty()) {
    commands.push_back("cgdebug-cli probes -s " + ShellWord(summary.sessions.front().key()));
  }
  return commands;
}

Json SummaryJson(const RunSummary& summary) {
  Json sessions = Json::array();
  for (const v1::Session& session : summary.sessions) sessions.push_back(ToJson(session));
  return {{"event", "summary"},
          {"job_exit_code", summary.job_exit_code},
          {"job_signal", summary.job_signal},
          {"complete", summary.complete},
          {"replays", summary.Replays()},
          {"snapshots", summary.Snapshots()},
          {"lost", summary.LostSnapshots()},
          {"nonfinite_probes", summary.NonfiniteProbes()},
          {"failed_probes", summary.FailedProbes()},
          {"not_compared_probes", summary.not_compared_probes},
          {"sessions", std::move(sessions)}};
}

}  // namespace cgdebug::cli
