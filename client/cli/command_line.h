// command_line.h: the whole command line as one CLI::App.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "client/cli/command.h"

namespace cgdebug::cli {

inline constexpr const char* kProgram = "cgdebug-cli";

// Thread: the main thread. Lifetime: `context` outlives it; its options are filled by parsing.
class CommandLine {
 public:
  explicit CommandLine(Context& context);

  // Parses and runs. Returns the exit code; never throws.
  int Run(int argc, const char* const* argv);

  CLI::App& app() { return app_; }

 private:
  struct Entry {
    CLI::App* app;
    RunFunction run;
    Output output;
  };
  int Explain(const CLI::ParseError& error);
  std::string ExtraText(const CLI::App* parsed, const std::string& extra) const;
  std::vector<std::string> VerbNames() const;
  const CLI::App* ParsedApp() const;  // the innermost one that was named

  Context& context_;
  CLI::App app_;
  std::vector<Entry> entries_;
};

}  // namespace cgdebug::cli
