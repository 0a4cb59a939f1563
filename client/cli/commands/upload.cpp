#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/run/upload_process.h"

namespace cgdebug::cli {
namespace {

struct UploadOptions {
  std::string folder;
  std::string url;
  bool follow = false;
};

// Becomes the Python that copies.
int RunUpload(Context& context, const UploadOptions& options) {
  auto command = UploadCommand(options.folder, options.url, options.follow);
  if (!command.ok()) return context.Fail(kExitTrouble, command.error().message);
  std::vector<char*> argv;
  for (std::string& argument : *command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execvp(argv.front(), argv.data());
  return context.Fail(kExitTrouble, ErrnoError("cannot start " + command->front()).message);
}

}  // namespace

RunFunction AddUpload(CLI::App& app) {
  auto options = std::make_shared<UploadOptions>();
  app.add_option("FOLDER", options->folder, "NAME.cgrec, or a folder of them")->required();
  app.add_option("URL", options->url, "s3://bucket/run, or what else fsspec knows")->required();
  app.add_flag(
      "--follow", options->follow,
      "go on while it is written: until NAME.cgrec is closed, or for a folder until Ctrl-C");
  return [options](Context& context) { return RunUpload(context, *options); };
}

}  // namespace cgdebug::cli
