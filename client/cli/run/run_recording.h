// run_recording.h: the recording that `run` was asked for, from before the job to the report of it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "client/cli/context.h"
#include "client/cli/run/run_options.h"
#include "client/cli/run/run_summary.h"

namespace cgdebug::cli {

class RunRecording {
 public:
  // Lifetime: both outlive it.
  RunRecording(Context& context, const RunOptions& options)
      : context_(context), options_(options) {}

  // Starts it before the job, so that nothing of the job is missing. False if it was asked for and
  // cannot begin, after the reason has been printed.
  bool Start(const std::string& run_id);
  // What the daemon had written is there, and nobody writes the rest.
  void SetDaemonGone() { is_daemon_gone_ = true; }
  // Whether it runs, and will have all that its probes saw.
  bool goes_on() const { return id_ != 0 && !is_daemon_gone_ && !exit_code_; }
  // How many snapshots it has whose daemon is gone.
  std::uint64_t LeftByDaemon() const;
  // Ends it once, and reports it; one that has ended already, with its last job, is reported as
  // well. Returns what to exit with: 0 without a recording. `sessions`: keys, of the run.
  int End(const std::set<std::string>& sessions, const RunSummary& summary);

 private:
  int Stop(const std::set<std::string>& sessions, const RunSummary& summary);
  // It has no probe: says what there was to record.
  int FailNothingRecorded(const std::set<std::string>& sessions);
  int FailDaemonGone() const;

  Context& context_;
  const RunOptions& options_;
  std::uint64_t id_ = 0;  // 0: there is none
  std::string directory_;
  bool is_daemon_gone_ = false;
  std::optional<int> exit_code_;  // once it has ended
};

}  // namespace cgdebug::cli
