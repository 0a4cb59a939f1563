// config_file.h: settings of a job in a file, cgdebug.toml: `watch = ["blk*", "!blk3"]` is
// CGDEBUG_WATCH=blk*,!blk3.
//
// The file is TOML. Its keys are the variables that a job reads, in lower case and without
// "cgdebug_"; a value is a string, a list of strings, true, false or a whole number. All else that
// TOML has is refused, so that nothing is read in another way than its author meant.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/core/base/result.h"

namespace cgdebug::words {

inline constexpr const char* kConfigFile = "cgdebug.toml";

// Variables and their texts, in the order of the file.
using ConfigSettings = std::vector<std::pair<std::string, std::string>>;

// Fails: the file cannot be read; a line that is not of this form, names no such variable, or gives
// it a text that it cannot have. The message begins with the path and the number of the line.
Result<ConfigSettings> ReadConfig(const std::string& path);
Result<ConfigSettings> ParseConfig(std::string_view text, const std::string& path);

}  // namespace cgdebug::words
