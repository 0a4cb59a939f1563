// completion.h: the completion script for bash, made from the command line itself.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace cgdebug::cli {

// Completes verbs, options, their choices, and the names of live probes and sessions, which the
// hidden verb `__complete` prints.
std::string BashCompletion(const CLI::App& app);

}  // namespace cgdebug::cli
