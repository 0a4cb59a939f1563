#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/sources/recordings.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

using recording::RecordingReader;

struct RemoveOptions {
  std::vector<std::string> paths;
  bool force = false;
  bool dry_run = false;
};

int RunRemove(Context& context, const RemoveOptions& options) {
  if (const int refused = RefuseSelection(context, "rm"); refused != kExitOk) return refused;
  std::vector<std::unique_ptr<source::Source>> sources;
  if (const int failed = OpenRecordings(context, options.paths, &sources)) return failed;
  for (const auto& source : sources) {
    for (const RecordingReader* reader : source->Recordings()) {
      const std::string text =
          fmt::format("{} ({}, {})", reader->directory(), SnapshotsText(reader->snapshot_count()),
                      numerics::FormatBytes(reader->bytes()));
      if (!options.force || options.dry_run) {
        Context::Print(PrintableLines("would remove " + text) + "\n");
        continue;
      }
      const Result<void> removed = RemoveRecording(reader->directory());
      if (!removed.ok()) return context.Fail(kExitTrouble, removed.error().message);
      context.Note("removed " + PrintableLines(text));
    }
  }
  if (options.force || options.dry_run) return kExitOk;
  return context.Fail(kExitTrouble, "nothing was removed. To remove it, add: -f");
}

}  // namespace

RunFunction AddRemove(CLI::App& app) {
  auto options = std::make_shared<RemoveOptions>();
  app.add_option("RECORDING", options->paths, "recordings, or folders of them")->required();
  app.add_flag("-f,--force", options->force,
               "remove it; without -f, only say what would be removed");
  app.add_flag("--dry-run", options->dry_run, "only say what would be removed");
  return [options](Context& context) { return RunRemove(context, *options); };
}

}  // namespace cgdebug::cli
