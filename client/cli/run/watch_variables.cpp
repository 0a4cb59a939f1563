#include "client/cli/run/watch_variables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "client/cli/remote/package.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/words/watch_level.h"

namespace cgdebug::cli {
namespace {

// Empty when there is none.
std::string FolderOfSitecustomize() {
  std::error_code ignored;
  for (const std::filesystem::path& package : PackageFolders()) {
    const std::filesystem::path folder = package / "_at_start";
    if (std::filesystem::exists(folder / "sitecustomize.py", ignored)) return folder;
  }
  return "";
}

// Whether a shell would start it.
bool IsProgram(const std::string& word) {
  if (word.find('/') != std::string::npos) return ::access(word.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + word).c_str(), X_OK) == 0) return true;
  }
  return false;
}

}  // namespace

Result<void> CheckWatchHasGlobs(const std::vector<std::string>& globs,
                                const std::vector<std::string>& command, bool has_end) {
  // A module may be called like a program: `run --watch head python x.py` is right.
  const bool lacks_job = !has_end && (command.empty() || !IsProgram(command.front()));
  for (const std::string& glob : globs) {
    const bool is_end = glob == "--";
    if (!is_end && !(lacks_job && IsProgram(glob))) continue;
    std::string meant = "cgdebug-cli run --watch '*' --";
    if (!is_end) meant += " " + ShellWord(glob);
    for (const std::string& word : command) meant += " " + ShellWord(word);
    return Error{fmt::format("--watch: what to watch is missing before '{}'. Type: {}", glob,
                             command.empty() && is_end ? meant + " python train.py" : meant)};
  }
  return {};
}

Result<Variables> WatchVariables(const std::vector<std::string>& globs, bool eager,
                                 const Variables& more) {
  if (globs.empty() && eager) {
    return Error{
        "--eager says how a job runs that --watch logs. Type for example: cgdebug-cli run --watch "
        "'op:*' --eager -- python train.py"};
  }
  Variables variables = more;
  if (!globs.empty()) {
    const std::string joined = fmt::format("{}", fmt::join(globs, ","));
    const Result<words::Watched> watched = words::ParseWatched(joined, "--watch");
    if (!watched.ok()) return watched.error();
    if (eager && watched->level == "fx") {
      return Error{
          "--eager: level fx is about compiled code, and nothing is compiled then. Type: "
          "--watch 'op:*' --eager"};
    }
    variables.emplace_back("CGDEBUG_WATCH", joined);
  }
  if (variables.empty()) return variables;
  std::string path = FolderOfSitecustomize();
  if (path.empty()) {
    return Error{
        "--watch, --blocking and --races need the Python package, which is not installed with this "
        "program. Type: python -m cgdebug run ...   (in the environment that has the package)"};
  }
  const char* before = std::getenv("PYTHONPATH");
  if (before != nullptr && *before != '\0') path += std::string(":") + before;
  variables.emplace_back("PYTHONPATH", path);
  if (eager) {
    variables.insert(variables.end(),
                     {{"CGDEBUG_WATCH_EAGER", "1"}, {"TORCH_COMPILE_DISABLE", "1"}});
  }
  return variables;
}

}  // namespace cgdebug::cli
