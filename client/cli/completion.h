// completion.h: completion scripts, made from the command line itself.
#pragma once

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace cgdebug::cli {

// A script for "bash", "zsh" or "fish" that completes verbs, options, their choices, and the names
// of live probes and sessions through the hidden verb `__complete`. Empty for another shell.
std::string CompletionScript(const CLI::App& app, std::string_view shell);

}  // namespace cgdebug::cli
