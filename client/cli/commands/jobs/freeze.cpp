#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/run/disk_options.h"
#include "client/cli/sources/recordings.h"
#include "client/cli/views/recording_text.h"
#include "daemon/core/base/bytes.h"
#include "daemon/core/options/number.h"
#include "daemon/core/options/parsed_option.h"
#include "daemon/core/recording/recording_writer.h"

namespace cgdebug::cli {
namespace {

struct FreezeOptions {
  std::string session;
  std::string output;
  std::vector<std::string> probes;
  std::uint64_t last = 0;
  std::uint64_t max_bytes = 0;
  bool force = false;
};

int RunFreeze(Context& context, const FreezeOptions& options) {
  if (const int failed = context.Connect()) return failed;
  const std::string path = RecordingPath(options.output);
  const Result<void> room = MakeRoom(path, options.force);
  if (!room.ok()) return context.Fail(kExitTrouble, room.error().message);
  const Result<live::Recording> recording =
      live::Freeze(context.client(), context.SessionOr(options.session), path, options.probes,
                   options.last, options.max_bytes);
  if (!recording.ok()) return context.Fail(recording.error());
  std::string why_missing = "they are no longer kept, or have no room.";
  if (!context.options.quiet) why_missing += " Which ones, and why:";
  return ReportRecording(context, *recording, why_missing);
}

}  // namespace

RunFunction AddFreeze(CLI::App& app) {
  auto options = std::make_shared<FreezeOptions>();
  app.add_option(
      "SESSION", options->session,
      "key, label or pid: one process; run id: all ranks of the run; default: the newest job, "
      "of those that are alive if there are any");
  AddRecordingOptions(app, &options->output, &options->force, &options->probes);
  app.add_option("--last", options->last, "only the newest N replays of each probe")
      ->check(WholeNumber(1))
      ->type_name("N");
  AddParsed(
      app, "--max-size",
      [](const std::string& text) { return ParseBytes(text, recording::kMinMaxBytes); },
      &options->max_bytes, "SIZE", "leave out the oldest replays of each probe beyond this: 20G");
  return [options](Context& context) { return RunFreeze(context, *options); };
}

}  // namespace cgdebug::cli
