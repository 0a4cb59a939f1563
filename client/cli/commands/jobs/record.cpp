#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "client/cli/command.h"
#include "client/cli/doctor/checks.h"
#include "client/cli/interrupt.h"
#include "client/cli/run/disk_options.h"
#include "client/cli/sources/recordings.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/json.h"
#include "client/cli/views/recording_text.h"
#include "client/cli/views/terminal.h"
#include "client/live/recordings.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/options/number.h"
#include "daemon/core/options/parsed_option.h"

namespace cgdebug::cli {
namespace {

constexpr std::chrono::milliseconds kStatePoll{50};

struct RecordOptions {
  std::string output;
  WhichOptions which_slots;
  std::chrono::milliseconds duration{0};
  live::RecordRequest request;
  bool force = false;
  bool wait = false;
  bool lossy = false;
  bool lossless = false;
  std::string which;
};

// Waits until the recording is over. Ctrl-C stops the recording, not only the waiting.
int WaitFor(Context& context, live::Recording recording) {
  const InterruptScope scope(&context.client());
  while (recording.active) {
    if (scope.interrupted()) {
      if (const int failed = context.Connect()) return failed;
      const auto stopped = live::StopRecording(context.client(), std::to_string(recording.id));
      if (!stopped.ok()) return context.Fail(stopped.error());
      return ReportRecording(context, stopped->front());
    }
    std::this_thread::sleep_for(kStatePoll);
    const auto list = live::ListRecordings(context.client());
    if (!list.ok() && scope.interrupted()) continue;
    if (!list.ok()) {
      const int failed = context.Fail(list.error());
      context.Hint("cgdebug-cli info " + ShellWord(recording.directory));
      return failed;
    }
    for (const live::Recording& one : *list) {
      if (one.id == recording.id) recording = one;
    }
  }
  return ReportRecording(context, recording);
}

int RunStart(Context& context, const RecordOptions& options) {
  const Result<WhichSlots> which = options.which_slots.Parse();
  if (!which.ok()) return context.Fail(kExitTrouble, which.error().message);
  if (const int failed = context.Connect()) return failed;
  live::RecordRequest request = options.request;
  request.directory = RecordingPath(options.output);
  const Result<void> room = MakeRoom(request.directory, options.force);
  if (!room.ok()) return context.Fail(kExitTrouble, room.error().message);
  request.session = context.options.session;
  request.which = *which;
  request.duration_s = std::chrono::duration<double>(options.duration).count();
  if (options.lossy) request.lossless = live::Lossless::kNever;
  if (options.lossless) request.lossless = live::Lossless::kAlways;
  NoteMarks(context);
  const Result<live::Recording> recording = live::StartRecording(context.client(), request);
  if (!recording.ok()) {
    const int failed = context.Fail(recording.error());
    // It may have begun before the answer was lost.
    if (context.client().last_failure() == client::Failure::kDaemonGone) {
      context.Hint("cgdebug-cli info " + ShellWord(request.directory));
    }
    return failed;
  }
  if (options.wait) return WaitFor(context, *recording);
  if (context.options.json) {
    Context::PrintJson(FieldsJson(*recording));
    return kExitOk;
  }
  const bool nothing_yet = recording->sessions.empty();
  context.Say(
      fmt::format("recording {} into {}{}", recording->id, Printable(recording->directory),
                  nothing_yet ? "; it begins with the first job that has such a probe" : ""));
  context.Hint(fmt::format("cgdebug-cli record stop {}", recording->id));
  return kExitOk;
}

int RunStop(Context& context, const RecordOptions& options) {
  if (const int failed = context.Connect()) return failed;
  // Anything but digits is a path.
  const bool is_path = options.which.find_first_not_of("0123456789") != std::string::npos;
  const auto stopped =
      live::StopRecording(context.client(), is_path ? RecordingPath(options.which) : options.which);
  if (!stopped.ok()) return context.Fail(stopped.error());
  int code = kExitOk;
  for (const live::Recording& recording : *stopped) {
    code = std::max(code, ReportRecording(context, recording));
  }
  return code;
}

int RunList(Context& context) {
  if (const int failed = context.Connect()) return failed;
  const auto recordings = live::ListRecordings(context.client());
  if (!recordings.ok()) return context.Fail(recordings.error());
  if (context.options.json) {
    Context::PrintJson({{"recordings", FieldJson(*recordings)}});
    return kExitOk;
  }
  if (recordings->empty()) {
    return context.Fail(kExitNoMatch,
                        "this daemon has recorded nothing. Type: cgdebug-cli record start "
                        "-o runs/a.cgrec");
  }
  using Align = TextTable::Align;
  TextTable table({{"ID", Align::kRight},
                   {"STATE"},
                   {"PROBES", Align::kCount},
                   {"SNAPSHOTS", Align::kCount},
                   {"ON DISK", Align::kCount},
                   {"MISSING", Align::kCount},
                   {"SIZE", Align::kRight},
                   {"DIRECTORY"}});
  for (const live::Recording& recording : *recordings) {
    table.Add({std::to_string(recording.id), recording.state, std::to_string(recording.slot_count),
               std::to_string(recording.snapshots), std::to_string(recording.durable_snapshots),
               std::to_string(recording.lost + recording.refused) +
                   (recording.refused > 0 ? " or more" : ""),
               numerics::FormatBytes(recording.bytes), Printable(recording.directory)});
  }
  context.PrintTable(table, 0);
  for (const live::Recording& recording : *recordings) {
    if (recording.error.empty()) continue;
    context.Note(fmt::format("{}: {}", recording.id, Printable(recording.error)));
  }
  return kExitOk;
}

}  // namespace

RunFunction AddRecord(CLI::App& app) {
  auto options = std::make_shared<RecordOptions>();
  app.require_subcommand(1);
  CLI::App* start = app.add_subcommand("start", "writes every snapshot from now on to the disk");
  AddRecordingOptions(*start, &options->output, &options->force, &options->request.probes);
  AddWhichOptions(*start, &options->which_slots);
  start->add_option("--count", options->request.replays, "stop after N replays of each probe")
      ->check(WholeNumber(1))
      ->type_name("N");
  AddParsed(
      *start, "--duration",
      [](const std::string& text) { return ParseDuration(text, std::chrono::milliseconds(1)); },
      &options->duration, "DURATION", "stop after this time: 30s, 5m, 1h");
  start
      ->add_option("--align", options->request.align,
                   "begin at a replay that is a multiple of N, so that all ranks begin alike")
      ->check(WholeNumber(1))
      ->type_name("N");
  AddDiskOptions(*start, &options->request);
  CLI::Option* lossy = start->add_flag(
      "--lossy", options->lossy,
      "no job waits for the recording; by default, jobs that start later wait and lose nothing");
  start->add_flag("--lossless", options->lossless, "running jobs wait for the recording too")
      ->excludes(lossy);
  start->add_flag("--wait", options->wait, "return when it is over; Ctrl-C stops it");
  CLI::App* stop = app.add_subcommand("stop", "ends a recording; without a name, all of them");
  stop->add_option("RECORDING", options->which, "its number or its directory");
  CLI::App* list = app.add_subcommand("list", "current and past recordings");
  return [options, start, stop, list](Context& context) {
    if (start->parsed()) return RunStart(context, *options);
    if (stop->parsed()) return RunStop(context, *options);
    return list->parsed() ? RunList(context) : static_cast<int>(kExitTrouble);
  };
}

}  // namespace cgdebug::cli
