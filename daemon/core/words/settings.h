// settings.h: the table of environment variables that users may set. The job reads them by it,
// `cgdebug-cli run` and `doctor` check them by it, and `cgdebug-cli help variables`, the manual
// page and client/docs/variables.md are made from it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/result.h"

namespace cgdebug::words {

struct Setting {
  std::string_view names;  // several with commas between them
  std::string_view read_by;
  std::string_view meaning;
  // Whether the variable may have this text; nullptr: it may have any, or its reader refuses it.
  Result<void> (*check)(const std::string& name, const std::string& text) = nullptr;
};

// Every variable that a job, the daemon or a client reads.
std::span<const Setting> Settings();

// An empty text is as good as none. Fails: the message names the variable and what it may be.
Result<void> CheckSetting(const std::string& name, const std::string& text);

// The text of a variable of this process; empty if it is unset or malformed. Who may be the first
// to read it says that it is malformed: see MalformedSettings().
std::string ReadSetting(const std::string& name);
// Requires: the table says that the variable is a number.
std::optional<std::uint64_t> ReadNumber(const std::string& name);

struct MalformedSetting {
  std::string name;
  std::string problem;
};
// Those of this process that are ignored because nobody can tell what they mean.
std::vector<MalformedSetting> MalformedSettings();

}  // namespace cgdebug::words
