#include "client/cli/sources/log_place.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "client/cli/views/terminal.h"

namespace cgdebug::cli {

Result<LogPlace> ParseLogPlace(const Context& context, const std::string& text,
                               const LogPlaceOptions& options) {
  constexpr std::string_view kCall = "call:";
  LogPlace where{.source = text};
  where.choice.graph = options.graph;
  where.choice.typed.options = context.SameJob();
  const std::size_t mark = where.source.rfind('@');
  if (mark != std::string::npos && !where.source.substr(mark).starts_with("@g:")) {
    std::string number = where.source.substr(mark + 1);
    const bool is_call = options.takes_calls && number.starts_with(kCall);
    if (is_call) number.erase(0, kCall.size());
    std::int64_t replay = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), replay);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == number.data() + number.size();
    if (!is_number || replay == 0 || (is_call && replay < 0)) {
      return Error{
          fmt::format("'{}' names no replay of {}: replays count from 1, -1 is the newest. Type "
                      "for example: cgdebug-cli {} {}{}",
                      number, text.substr(0, mark), options.command,
                      ShellWord(text.substr(0, mark) + "@12"), where.choice.typed.options)};
    }
    where.choice.replay = replay;
    where.names_replay = true;
    where.source.resize(mark);
    where.choice.is_call = is_call;
    if (is_call && options.graph.empty()) where.choice.graph = "eager";
  }
  const std::size_t label = where.source.rfind("@g:");
  if (label != std::string::npos) {
    where.choice.graph = where.source.substr(label + 3);
    where.source.resize(label);
    const std::size_t before = where.source.rfind('@');
    const std::string replay = before == std::string::npos ? "" : where.source.substr(before);
    if (replay.size() > 1 && !where.names_replay &&
        replay.find_first_not_of("-0123456789", 1) == std::string::npos) {
      return Error{fmt::format(
          "'{}': the graph comes before the replay. Type: cgdebug-cli {} {}", text, options.command,
          ShellWord(where.source.substr(0, before) + "@g:" + where.choice.graph + replay))};
    }
  }
  if (where.source.empty()) where.source = "live";
  where.choice.typed.source = where.source;
  where.choice.typed.is_any_job = where.source == "live" && context.options.session.empty();
  if (!where.choice.graph.empty() && !where.choice.is_call) {
    where.choice.typed.at_graph = "@g:" + where.choice.graph;
  }
  return where;
}

}  // namespace cgdebug::cli
