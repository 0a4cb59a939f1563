// run_summary.h: sums up a run's sessions, and decides the exit code.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/views/json.h"
#include "client/cli/views/terminal.h"

namespace cgdebug::cli {

struct FailOn {
  bool nan = false;
  bool inf = false;
  bool mismatch = false;
  bool replica = false;
  bool any() const { return nan || inf || mismatch || replica; }
};

struct RunSummary {
  std::vector<live::Session> sessions;
  int job_exit_code = 0;
  int job_signal = 0;
  // The daemon has found every session, read all of it and seen its end: nothing is missing.
  bool complete = false;
  bool is_unreachable = false;  // the daemon is gone, or does not answer
  std::uint64_t recorded = 0;   // snapshots that a daemon had recorded before it was gone
  bool is_watched = false;      // by --watch: the job says why a module is not
  // Processes that go on after the command. All that they did so far is read.
  std::vector<std::int64_t> outliving = {};
  std::uint64_t not_compared_probes = 0;  // with a comparison that did not reach every snapshot
  // Which first NaN or Inf of a session is in a row of an op log: its key and Slot::order, and
  // where the row lies in its call (source::PlaceInCall).
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> rows;
  // Of these, the ones that were made between two calls: the next one (analysis::NextCallOf).
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> next_calls;
  // Of rows of op logs with NaN or Inf: what `check` says of them was asked, and the firsts of the
  // sessions are those without an excuse. `open`: of how many nobody knows whether they have one.
  bool is_checked = false;
  std::uint64_t open = 0;
  bool has_compiled_code = false;  // that a probe is in
  // The key of the newest earlier job of the same program with other arguments, which this one may
  // be compared with; empty: there is none.
  std::string earlier = {};

  std::uint64_t Replays() const;
  const char* ReplayWord() const;   // what Replays() counts: "replay", "call"
  std::uint64_t Snapshots() const;  // the daemon read
  std::uint64_t LostSnapshots() const;
  std::uint64_t LeftOut() const;  // of probes that were turned off, or whose rings stood still
  std::uint64_t NonfiniteProbes() const;
  std::uint64_t FailedProbes() const;
  std::uint64_t UnseenProbes() const;  // whose values nobody has looked at
  // What the run's processes wanted to be seen and nobody saw, in sentences.
  std::vector<std::string> NotSeen() const;
  std::vector<const live::Session*> SessionPtrs() const;
  live::ReplicaCounts Replicas() const;
};

// The job's exit code when it is not 0. Else, whatever was asked for, 3 when something was to be
// seen and nobody saw it, or a process goes on; 1 when something of `fail_on` was found, 4 when the
// run had no probe to look at, 3 when nothing was found but no snapshot came, nobody knows whether
// a NaN or Inf has an excuse (analysis::Excuse), or snapshots are missing, may be missing, were
// left out, were not looked at (`mismatch` alone needs no look) or, where comparisons are asked
// for, were not compared, 0. Replicas must have been compared on all ranks of this machine.
int ExitCodeOf(const RunSummary& summary, const FailOn& fail_on);

// Several lines for people, without the newline at the end.
std::string SummaryText(const RunSummary& summary, const FailOn& fail_on, const Style& style);
// "first NaN: blk3.attn @37 on rank 1": what came first in any rank; empty when there is none.
std::string FirstFinding(const RunSummary& summary);
// What shows the op log that has the first finding: that of the job, or of `recording`, a path;
// empty if no row of a log has it.
std::string LogCommand(const RunSummary& summary, const std::string& recording = "");
// What of the job is in a recording.
enum class Recorded { kNothing, kSome, kAll };
// What to type next. `log_ops`: what runs the job again and looks at its ops; empty: nothing does.
// `watch_all`: what runs a job that had no probe again, with probes; empty: nothing does.
// `recorded`: a recording is asked the same, and lasts longer: it has its own hint.
std::vector<std::string> NextCommands(const RunSummary& summary,
                                      const std::vector<std::string>& log_ops = {},
                                      const std::string& watch_all = "",
                                      Recorded recorded = Recorded::kNothing);
Json SummaryJson(const RunSummary& summary);

}  // namespace cgdebug::cli
