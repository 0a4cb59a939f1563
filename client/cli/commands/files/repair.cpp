#include <CLI/CLI.hpp>
#include <memory>

#include "client/cli/commands/files/copy.h"
#include "client/cli/views/recording_text.h"
#include "client/source/source.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

using recording::RecordingReader;

int RunRepair(Context& context, const CopyCommand& options) {
  const std::string& path = options.paths.front();
  // Do not trust the index: it may be what is damaged.
  const auto reader = RecordingReader::Open(path, {.trust_index = false});
  if (!reader.ok()) {
    const auto source = source::Open(path);  // says what a source is
    return context.Fail(kExitTrouble,
                        source.ok() ? reader.error().message : source.error().message);
  }
  if ((*reader)->being_written()) {
    return context.Fail(kExitTrouble,
                        path + " is being written now. Type: cgdebug-cli record stop");
  }
  source::CountSnapshotsKnown((*reader)->snapshot_count());
  return Copy(context, options, {reader->get()},
              options.output.empty() ? Beside(path, "repaired") : RecordingPath(options.output));
}

}  // namespace

RunFunction AddRepair(CLI::App& app) {
  auto options = std::make_shared<CopyCommand>();
  app.add_option("RECORDING", options->paths, "a damaged or cut off recording; it stays as it is")
      ->required()
      ->expected(1);
  AddCopyOptions(app, options, /*has_scope=*/false);
  return [options](Context& context) { return RunRepair(context, *options); };
}

}  // namespace cgdebug::cli
