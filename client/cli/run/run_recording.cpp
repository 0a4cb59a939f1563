#include "client/cli/run/run_recording.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "client/cli/doctor/checks.h"
#include "client/cli/run/run_again.h"
#include "client/cli/sources/recordings.h"
#include "client/cli/views/recording_text.h"
#include "client/live/probe.h"
#include "client/live/recordings.h"
#include "daemon/core/base/suggest.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kMaxNames = 10;

// Why the recording lacks snapshots, and what to do.
std::string WhyMissing(const RunOptions& options) {
  return fmt::format(
      "the job was faster than this machine writes. Record fewer probes (--record), "
      "or {}",
      options.lossy ? "let the job wait: leave --lossy out"
                    : "let the job wait longer: CGDEBUG_WAIT_MS=60000");
}

}  // namespace

bool RunRecording::Start(const std::string& run_id) {
  if (RecordedBy(options_) == Recorded::kNothing) return true;
  live::RecordRequest request = options_.record;
  request.directory = directory_ = RecordingPath(options_.output);
  if (const Result<void> room = MakeRoom(request.directory, options_.force); !room.ok()) {
    context_.Fail(kExitTrouble, room.error().message);
    return false;
  }
  request.run_id = run_id;
  request.owner_pid = ::getpid();
  if (options_.lossy) request.lossless = live::Lossless::kNever;
  NoteMarks(context_);
  const Result<live::Recording> recording = live::StartRecording(context_.client(), request);
  if (!recording.ok()) {
    context_.Fail(recording.error());
    return false;
  }
  id_ = recording->id;
  return true;
}

std::uint64_t RunRecording::LeftByDaemon() const {
  if (id_ == 0 || !is_daemon_gone_) return 0;
  const auto left = recording::RecordingReader::Open(directory_);
  return left.ok() ? (*left)->snapshot_count() : 0;
}

int RunRecording::End(const std::set<std::string>& sessions, const RunSummary& summary) {
  if (id_ == 0) return kExitOk;
  if (!exit_code_) exit_code_ = is_daemon_gone_ ? FailDaemonGone() : Stop(sessions, summary);
  return *exit_code_;
}

int RunRecording::Stop(const std::set<std::string>& sessions, const RunSummary& summary) {
  const bool is_all_unseen = !summary.NotSeen().empty();
  const auto stopped = live::StopRecording(context_.client(), std::to_string(id_),
                                           /*job_ended=*/summary.outliving.empty());
  if (!stopped.ok()) return context_.Fail(stopped.error());
  const live::Recording& recording = stopped->front();
  if (recording.slot_count == 0 && is_all_unseen) return kExitInconclusive;  // as was said
  if (recording.slot_count == 0 && recording.error.empty() && recording.lost == 0) {
    return FailNothingRecorded(sessions);
  }
  // Globs of --record may have left rows of the log out.
  const std::string log = options_.record.probes.empty()
                              ? LogCommand(summary, NearPath(recording.directory))
                              : std::string();
  return ReportRecording(context_, recording, WhyMissing(options_), log);
}

int RunRecording::FailNothingRecorded(const std::set<std::string>& sessions) {
  std::set<std::string> distinct;
  const Result<std::vector<live::Probe>> probes =
      live::ListProbes(context_.client(), "", {}, live::LastStats::kNone);
  if (probes.ok()) {
    for (const live::Probe& probe : *probes) {
      if (sessions.contains(probe.session)) distinct.insert(Printable(probe.slot.probe));
    }
  }
  if (distinct.empty()) {
    const RunAgain again(context_.words, options_);
    if (const std::string no_graph = again.NoGraphText(); !no_graph.empty()) {
      return context_.Fail(kExitNoMatch, fmt::format("nothing was recorded: {}. Type: {}", no_graph,
                                                     again.LogEagerCommand()));
    }
    const std::string watch_all = again.WatchAllCommand();
    return context_.Fail(kExitNoMatch,
                         fmt::format("nothing was recorded: no probe of the job saw a tensor. "
                                     "Type: {}",
                                     watch_all.empty() ? "cgdebug-cli doctor" : watch_all));
  }
  std::vector<std::string> names(distinct.begin(), distinct.end());
  const std::string wanted = fmt::format("{}", fmt::join(options_.record.probes, " "));
  const std::string close = DidYouMean(wanted, names);
  const std::size_t more = names.size() - std::min(names.size(), kMaxNames);
  names.resize(names.size() - more);
  return context_.Fail(
      kExitNoMatch,
      fmt::format("nothing was recorded: no probe matches --record '{}'. The job has: {}{}.{}",
                  wanted, fmt::join(names, ", "),
                  more == 0 ? "" : fmt::format(" and {} more", more), close));
}

int RunRecording::FailDaemonGone() const {
  return context_.Fail(
      kExitInconclusive,
      fmt::format(
          "the daemon that recorded the job has ended or hangs, so the end of the recording "
          "is missing. Type: cgdebug-cli info {}",
          options_.output.empty() ? "runs" : ShellWord(options_.output)));
}

}  // namespace cgdebug::cli
