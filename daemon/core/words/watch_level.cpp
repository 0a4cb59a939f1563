#include "daemon/core/words/watch_level.h"

#include <algorithm>
#include <cctype>

#include "daemon/core/base/glob.h"

namespace cgdebug::words {
namespace {

bool IsWord(std::string_view text) {
  const bool begins = !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0;
  return begins && std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
         });
}

std::string QuotedLevels() {
  std::string levels;
  for (const std::string_view level : kWatchLevels) {
    if (!levels.empty()) levels += level == std::end(kWatchLevels)[-1] ? " or " : ", ";
    levels += std::string(level) + ":";
  }
  return levels;
}

}  // namespace

Result<Watched> ParseWatched(std::string_view text, std::string_view what) {
  const std::string begin = std::string(what) + ": ";
  Watched watched;
  const std::size_t colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  if (colon != std::string_view::npos && word != "re" && IsWord(word)) {
    const auto* const known = std::find(std::begin(kWatchLevels), std::end(kWatchLevels), word);
    if (known == std::end(kWatchLevels)) {
      return Error{begin + "'" + std::string(word) + ":' is no level: type " + QuotedLevels() +
                   " before the globs"};
    }
    watched.level = *known;
    text.remove_prefix(colon + 1);
  }
  watched.globs = std::string(text);
  const Result<Selector> selector = Selector::ParseList(text);
  if (!selector.ok()) return Error{begin + selector.error().message};
  if (selector->selects_everything()) {
    const char* const between = what.starts_with("--") ? " '*'" : "='*'";
    return Error{begin + "no module is named. To watch all, type: " + std::string(what) + between};
  }
  return watched;
}

}  // namespace cgdebug::words
