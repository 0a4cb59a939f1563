#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/commands/disk_options.h"
#include "client/cli/interrupt.h"
#include "client/cli/sources.h"
#include "client/cli/views/recording_text.h"
#include "client/cli/views/terminal.h"
#include "client/live/messages.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/options/parsed_option.h"
#include "daemon/core/options/whole_number.h"

namespace cgdebug::cli {
namespace {

constexpr std::chrono::milliseconds kStatePoll{50};

struct RecordOptions {
  std::string output;
  std::vector<std::string> probes;
  WhichOptions which_slots;
  std::uint64_t replays = 0;
  std::chrono::milliseconds duration{0};
  std::uint64_t align = 0;
  DiskOptions disk;
  bool wait = false;
  bool lossy = false;
  bool lossless = false;
  std::string which;
};

// Waits until the recording is over. Ctrl-C stops the recording, not only the waiting.
int WaitFor(Context& context, v1::Recording recording) {
  const InterruptScope scope(&context.client());
  while (recording.active()) {
    if (scope.interrupted()) {
      if (const int failed = context.Connect(); failed != kExitOk) return failed;
      v1::RecordStopRequest stop;
      stop.set_recording(std::to_string(recording.id()));
      const auto stopped = context.client().RecordStop(stop);
      if (!stopped.ok()) return context.Fail(stopped.error());
      return ReportRecording(context, stopped->recordings(0));
    }
    std::this_thread::sleep_for(kStatePoll);
    const auto list = context.client().RecordList({});
    if (!list.ok() && scope.interrupted()) continue;
    if (!list.ok()) {
      const int failed = context.Fail(list.error());
      context.Hint("cgdebug-cli info " + ShellWord(recording.directory()));
      return failed;
    }
    for (const v1::Recording& one : list->recordings()) {
      if (one.id() == recording.id()) recording = one;
    }
  }
  return ReportRecording(context, recording);
}

int RunStart(Context& context, const RecordOptions& options) {
  const Result<WhichSlots> which = options.which_slots.Parse();
  if (!which.ok()) return context.Fail(kExitTrouble, which.error().message);
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  v1::RecordStartRequest request;
  request.set_directory(RecordingPath(options.output));
  request.set_session(context.options.session);
  for (const std::string& probe : options.probes) request.add_probes(probe);
  live::FillWhich(*which, request.mutable_which());
  request.set_replays(options.replays);
  request.set_duration_s(std::chrono::duration<double>(options.duration).count());
  request.set_align(options.align);
  if (options.lossy) request.set_lossless(v1::RecordStartRequest::NEVER);
  if (options.lossless) request.set_lossless(v1::RecordStartRequest::ALWAYS);
  Apply(options.disk, &request);
  const auto reply = context.client().RecordStart(request);
  if (!reply.ok()) {
    const int failed = context.Fail(reply.error());
    // It may have begun before the answer was lost.
    if (context.client().last_failure() == client::Failure::kDaemonGone) {
      context.Hint("cgdebug-cli info " + ShellWord(request.directory()));
    }
    return failed;
  }
  const v1::Recording& recording = reply->recording();
  if (options.wait) return WaitFor(context, recording);
  if (context.options.json) {
    Context::Print(Dump(ToJson(recording), /*indented=*/true) + "\n");
    return kExitOk;
  }
  const bool nothing_yet = recording.sessions().empty();
  context.Say(
      fmt::format("recording {} into {}{}", recording.id(), Printable(recording.directory()),
                  nothing_yet ? "; it begins with the first job that has such a probe" : ""));
  context.Hint(fmt::format("cgdebug-cli record stop {}", recording.id()));
  return kExitOk;
}

int RunStop(Context& context, const RecordOptions& options) {
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  v1::RecordStopRequest request;
  // Anything but digits is a path.
  const bool is_path = options.which.find_first_not_of("0123456789") != std::string::npos;
  request.set_recording(is_path ? RecordingPath(options.which) : options.which);
  const auto reply = context.client().RecordStop(request);
  if (!reply.ok()) return context.Fail(reply.error());
  int code = kExitOk;
  for (const v1::Recording& recording : reply->recordings()) {
    code = std::max(code, ReportRecording(context, recording));
  }
  return code;
}

int RunList(Context& context) {
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  const auto reply = context.client().RecordList({});
  if (!reply.ok()) return context.Fail(reply.error());
  if (context.options.json) {
    Json array = Json::array();
    for (const v1::Recording& recording : reply->recordings()) array.push_back(ToJson(recording));
    Context::Print(Dump({{"recordings", std::move(array)}}, /*indented=*/true) + "\n");
    return kExitOk;
  }
  if (reply->recordings().empty()) {
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
                   {"LOST", Align::kCount},
                   {"SIZE", Align::kRight},
                   {"DIRECTORY"}});
  for (const v1::Recording& recording : reply->recordings()) {
    table.Add({std::to_string(recording.id()), recording.state(),
               std::to_string(recording.slot_count()), std::to_string(recording.snapshots()),
               std::to_string(recording.durable_snapshots()),
               std::to_string(recording.lost() + recording.refused()),
               context.options.plain ? std::to_string(recording.bytes())
                                     : numerics::FormatBytes(recording.bytes()),
               Printable(recording.directory())});
  }
  Context::Print(context.options.plain ? table.RenderPlain() : table.Render(context.out, 0));
  for (const v1::Recording& recording : reply->recordings()) {
    if (recording.error().empty()) continue;
    context.Note(
        fmt::format("{}: {}", Printable(recording.directory()), Printable(recording.error())));
  }
  return kExitOk;
}

}  // namespace

RunFunction AddRecord(CLI::App& app) {
  auto options = std::make_shared<RecordOptions>();
  app.require_subcommand(1);
  CLI::App* start = app.add_subcommand("start", "writes every snapshot from now on to the disk");
  AddRecordingOptions(*start, &options->output, &options->probes);
  AddWhichOptions(*start, &options->which_slots);
  start->add_option("--replays", options->replays, "stop after N replays of each probe")
      ->check(WholeNumber(1))
      ->type_name("N");
  AddParsed(
      *start, "--duration",
      [](const std::string& text) { return ParseDuration(text, std::chrono::milliseconds(1)); },
      &options->duration, "DURATION", "stop after this time: 30s, 5m, 1h");
  start
      ->add_option("--align", options->align,
                   "begin at a replay that is a multiple of N, so that all ranks begin alike")
      ->check(WholeNumber(1))
      ->type_name("N");
  AddDiskOptions(*start, &options->disk);
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
