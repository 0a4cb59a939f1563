#include "client/cli/sources/selector.h"

#include <charconv>

#include "daemon/core/recording/files/remote_files.h"

namespace cgdebug::cli {
namespace {

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Error BadRanks(std::string_view text) {
  return Error{"--ranks '" + std::string(text) +
               "' is not a list of ranks. Type for example: --ranks 0,1,8..15"};
}

}  // namespace

Result<RankSet> RankSet::Parse(std::string_view text) {
  RankSet set;
  if (text.empty()) return set;
  const std::string_view all = text;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    const std::size_t dots = item.find("..");
    const auto first = ParseNumber<int>(item.substr(0, dots));
    const auto last =
        dots == std::string_view::npos ? first : ParseNumber<int>(item.substr(dots + 2));
    if (!first || !last || *first < 0 || *last < *first) return BadRanks(all);
    set.ranges_.push_back({*first, *last});
    if (comma == text.size()) return set;
    text.remove_prefix(comma + 1);
  }
}

bool RankSet::Contains(int rank) const {
  if (ranges_.empty()) return true;
  for (const Range& range : ranges_) {
    if (rank >= range.first && rank <= range.last) return true;
  }
  return false;
}

int RankSet::Single() const {
  const bool single = ranges_.size() == 1 && ranges_[0].first == ranges_[0].last;
  return single ? ranges_[0].first : -1;
}

namespace {

constexpr const char* kEagerGraph = "eager";

bool ParseReplay(std::string_view text, Inside* inside) {
  constexpr std::string_view kStep = "step:";
  if (text == "first-nan") return inside->first_nan = true;
  if (text.starts_with(kStep)) {
    const auto step = ParseNumber<std::int64_t>(text.substr(kStep.size()));
    if (!step || *step < 0) return false;
    inside->step = *step;
    return true;
  }
  constexpr std::string_view kCall = "call:";
  const bool is_call = text.starts_with(kCall);
  if (is_call) text.remove_prefix(kCall.size());
  const std::size_t dot = text.find('.');
  const auto replay = ParseNumber<std::int64_t>(text.substr(0, dot));
  if (!replay || *replay == 0 || (is_call && *replay < 0)) return false;
  inside->replay = *replay;
  if (is_call) inside->which.graph = kEagerGraph;
  if (dot == std::string_view::npos) return true;
  inside->iteration = ParseNumber<std::uint32_t>(text.substr(dot + 1));
  return inside->iteration && *replay > 0;
}

// What a word that is no replay was probably meant as: "s3" and "step3" as "step:3", "nan" as
// "first-nan"; empty if nobody knows.
std::string MeantReplay(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_of("0123456789"), text.size());
  std::string word(text.substr(0, digits));
  const std::string_view number = text.substr(digits);
  while (!word.empty() && std::string_view(":=_- ").find(word.back()) != std::string_view::npos) {
    word.pop_back();
  }
  if (ParseNumber<std::int64_t>(number)) {
    if (word == "s" || word == "step") return "step:" + std::string(number);
    if (word == "c" || word == "call") return "call:" + std::string(number);
    if (word == "r" || word == "replay") return std::string(number);
  }
  if (text == "last" || text == "newest") return "-1";
  const std::string_view nan = "nan";
  return text.starts_with("first") || text.find(nan) != std::string_view::npos ? "first-nan" : "";
}

}  // namespace

Result<Inside> ParseInside(std::string_view text) {
  const std::string typed(text);
  Inside inside;
  constexpr std::string_view kGraph = "g:";
  std::size_t at = text.rfind('@');
  if (at != std::string_view::npos && !text.substr(at + 1).starts_with(kGraph)) {
    std::string_view replay = text.substr(at + 1);
    if (const std::size_t slice = replay.find('['); slice != std::string_view::npos) {
      inside.slice = std::string(replay.substr(slice));
      replay = replay.substr(0, slice);
    }
    if (!ParseReplay(replay, &inside)) {
      const std::string meant = MeantReplay(replay);
      return Error{
          "'" + typed +
          "': what follows @ is a replay: a number from 1 (12.3 for iteration 3 of a conditional "
          "body), call:N for an eager call, -1 for the newest, first-nan, or step:N; or a graph: "
          "g:LABEL. Type for example: "
          "cgdebug-cli show " +
          std::string(text.substr(0, at)) + "@" + (meant.empty() ? "-1" : meant)};
    }
    text = text.substr(0, at);
    at = text.rfind('@');
  }
  if (at != std::string_view::npos && text.substr(at + 1).starts_with(kGraph)) {
    const std::string graph(text.substr(at + 1 + kGraph.size()));
    if (!inside.which.graph.empty() && graph != kEagerGraph) {
      return Error{"'" + typed +
                   "': a call is eager, and in no graph. Type for example: @g:" + graph + "@-1"};
    }
    inside.which.graph = graph;
    text = text.substr(0, at);
  }
  if (const std::size_t brace = text.rfind('{');
      brace != std::string_view::npos && text.ends_with('}')) {
    inside.which.shape = ParseShape(text.substr(brace));
    if (inside.which.shape) text = text.substr(0, brace);
  }
  inside.text = std::string(text);
  // "blk[2:]" is not a tensor of a session called "blk[2".
  constexpr std::string_view kScheme = "://";
  const std::size_t from =
      recording::IsUrl(text) ? text.find(kScheme) + kScheme.size() : std::size_t{0};
  const std::size_t colon =
      text.ends_with(']') ? text.substr(0, text.rfind('[')).find(':', from) : text.find(':', from);
  if (colon != std::string_view::npos) {
    inside.source = std::string(text.substr(0, colon));
    if (inside.source == "live") inside.source.clear();
    text = text.substr(colon + 1);
  }
  inside.probe = std::string(text);
  if (inside.probe.empty()) {
    return Error{"'" + typed + "' names no probe. Type: cgdebug-cli " +
                 (inside.source.empty() ? "probes" : "info " + inside.source)};
  }
  return inside;
}

bool TakeSliceOffName(Inside* inside) {
  const std::size_t bracket = inside->probe.rfind('[');
  if (!inside->slice.empty() || !inside->probe.ends_with(']') || bracket == 0 ||
      bracket == std::string::npos) {
    return false;
  }
  inside->slice = inside->probe.substr(bracket);
  inside->probe.resize(bracket);
  return true;
}

}  // namespace cgdebug::cli
