// run_again.h: how a job is run again, so that more of it is seen.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/run/run_options.h"

namespace cgdebug::cli {

class RunAgain {
 public:
  // `words`: all that was typed behind the name of the program. Lifetime: both outlive it.
  RunAgain(const std::vector<std::string>& words, const RunOptions& options)
      : words_(words), options_(options) {}

  // Why the op log of a job without a replay is empty; empty if it logged what runs eagerly, too.
  std::string NoGraphText() const;
  // Such a job once more, with a log of what runs eagerly.
  std::string LogEagerCommand() const { return LogEagerCommand(LevelOfCaptures()); }
  // What looks at the ops of the job; empty if it was not told to watch modules. An eager log lets
  // nothing be compiled, so what is wrong in compiled code may not show there.
  std::vector<std::string> LogOpsCommands(bool has_compiled_code) const;
  // What watches all of its modules; empty if this run did. Whoever watches something else than
  // modules still does.
  std::string WatchAllCommand() const;
  // Of a command that could not be run: what was meant, or where to look.
  std::string InsteadText() const;

 private:
  // The level of an op log that the job was told to make of what it captures: "op"; empty
  // otherwise.
  std::string_view LevelOfCaptures() const;
  std::string LogEagerCommand(std::string_view level) const;
  std::string WatchCommand(std::string_view what) const;
  // What was typed, but for the program of the job.
  std::string WithProgram(const std::string& program) const;

  const std::vector<std::string>& words_;
  const RunOptions& options_;
};

}  // namespace cgdebug::cli
