// copy.h: writes recordings anew: what repair and extract share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/sources/sources.h"

namespace cgdebug::recording {
class RecordingReader;
}

namespace cgdebug::cli {

struct CopyCommand {
  std::vector<std::string> paths;
  std::string output;
  ScopeOptions scope;
  bool force = false;
  bool dry_run = false;
};

// Declares their options: where to write and, with `has_scope`, which part.
void AddCopyOptions(CLI::App& app, const std::shared_ptr<CopyCommand>& options, bool has_scope);

// "runs/a.cgrec" -> "runs/a.<word>.cgrec".
std::string Beside(std::string path, const std::string& word);

// Writes what `options` select of the recordings into `output`, and says so.
int Copy(Context& context, const CopyCommand& options,
         const std::vector<const recording::RecordingReader*>& readers, const std::string& output);
// Copies every recording that `options.paths` names into `options.output`.
int CopyPaths(Context& context, const CopyCommand& options);

}  // namespace cgdebug::cli
