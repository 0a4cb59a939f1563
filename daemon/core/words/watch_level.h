// watch_level.h: what a watch looks at: globs of module names, with a level in front of them.
#pragma once

#include <string>
#include <string_view>

#include "daemon/core/base/result.h"

namespace cgdebug::words {

inline constexpr std::string_view kWatchLevels[] = {"module", "graph", "op", "kernel", "fx"};

struct Watched {
  std::string_view level = "module";
  std::string globs;  // with commas between them
};

// "layers.*", "op:layers.*". A word with a colon behind it is a level, but for "re", which begins a
// regular expression.
// Fails: an unknown level, a bad pattern, or none. The message begins with `what`.
Result<Watched> ParseWatched(std::string_view text, std::string_view what);

}  // namespace cgdebug::words
