// variables.h: the table of environment variables that users may set: `cgdebug-cli help variables`,
// the manual page and client/docs/variables.md are made from it.
#pragma once

#include <span>
#include <string_view>

namespace cgdebug::cli {

struct EnvironmentVariable {
  std::string_view names;  // several with commas between them
  std::string_view read_by;
  std::string_view meaning;
};

// Every variable that a job, the daemon or a client reads.
std::span<const EnvironmentVariable> EnvironmentVariables();

}  // namespace cgdebug::cli
