#include <CLI/CLI.hpp>
#include <memory>

#include "client/cli/commands/files/copy.h"

namespace cgdebug::cli {

RunFunction AddExtract(CLI::App& app) {
  auto options = std::make_shared<CopyCommand>();
  app.add_option("RECORDING", options->paths, "recordings, or folders of them")->required();
  AddCopyOptions(app, options, /*has_scope=*/true);
  app.get_option("--output")->required();
  return [options](Context& context) { return CopyPaths(context, *options); };
}

}  // namespace cgdebug::cli
