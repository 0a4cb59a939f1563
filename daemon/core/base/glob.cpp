#include "daemon/core/base/glob.h"

#include <algorithm>
#include <utility>

namespace cgdebug {
namespace {

constexpr std::size_t kMaxRegexBytes = 1000;
constexpr std::size_t kMaxRegexDigits = 9;  // in a number that std::regex reads into a long

// Clients send patterns to the daemon, so matching must not take exponential time. libstdc++
// promises that in this mode, in which it refuses back-references.
#ifdef __GLIBCXX__
constexpr auto kRegexFlags = std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
constexpr auto kRegexFlags = std::regex::ECMAScript;
#endif

// Whether a repetition {N} or {N,M}, or a back-reference, has a number that overflows in
// std::regex.
bool HasHugeNumber(std::string_view regex) {
  constexpr std::string_view kDigits = "0123456789";
  for (std::size_t at = regex.find_first_of("\\{,"); at != std::string_view::npos;
       at = regex.find_first_of("\\{,", at + 1)) {
    const std::size_t end = std::min(regex.find_first_not_of(kDigits, at + 1), regex.size());
    if (end - at - 1 > kMaxRegexDigits) return true;
  }
  return false;
}

// Matches `c` against the set that starts at pattern[at] == '['. Returns the index after ']', or 0
// if the set is not closed.
std::size_t MatchSet(std::string_view pattern, std::size_t at, unsigned char c, bool* matched) {
  std::size_t i = at + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  bool found = false;
  for (const std::size_t first = i; i < pattern.size(); ++i) {
    if (pattern[i] == ']' && i != first) {
      *matched = found != negated;
      return i + 1;
    }
    const auto low = static_cast<unsigned char>(pattern[i]);
    auto high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      high = static_cast<unsigned char>(pattern[i + 2]);
      i += 2;
    }
    found = found || (low <= c && c <= high);
  }
  return 0;
}

// Matches one character against the pattern item at `at` (not '*'). Returns the index after the
// item, or 0 if it does not match.
std::size_t MatchItem(std::string_view pattern, std::size_t at, char c) {
  if (pattern[at] == '?') return at + 1;
  if (pattern[at] == '[') {
    bool matched = false;
    const std::size_t next = MatchSet(pattern, at, static_cast<unsigned char>(c), &matched);
    if (next != 0) return matched ? next : 0;
  }
  if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
  return pattern[at] == c ? at + 1 : 0;
}

}  // namespace

bool GlobMatch(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0;
  std::size_t after_star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_text = t;
      continue;
    }
    if (p < pattern.size()) {
      if (const std::size_t next = MatchItem(pattern, p, text[t]); next != 0) {
        p = next;
        ++t;
        continue;
      }
    }
    if (after_star == std::string_view::npos) return false;
    // Only the last star is tried again: an earlier one could not match more.
    p = after_star;
    t = ++star_text;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<Selector::Pattern> Selector::ParseOne(std::string_view text) {
  Pattern pattern;
  pattern.is_regex = text.starts_with("re:");
  pattern.glob = std::string(pattern.is_regex ? text.substr(3) : text);
  if (pattern.glob.empty()) {
    return Error{
        "empty probe pattern. Type a name, a glob like 'blk*.attn', or leave it out for all "
        "probes."};
  }
  if (!pattern.is_regex) return pattern;
  if (pattern.glob.size() > kMaxRegexBytes) {
    return Error{"the regular expression has " + std::to_string(pattern.glob.size()) + " bytes, " +
                 std::to_string(kMaxRegexBytes) + " is the most. Use a glob, or several patterns."};
  }
  if (HasHugeNumber(pattern.glob)) {
    return Error{"bad regular expression '" + pattern.glob + "': a number in it has more than " +
                 std::to_string(kMaxRegexDigits) + " digits."};
  }
  try {
    pattern.regex = std::regex(pattern.glob, kRegexFlags);
  } catch (const std::regex_error& failure) {
    return Error{"bad regular expression '" + pattern.glob + "': " + failure.what() +
                 ". Without 're:' in front it is a glob like 'blk*.attn'."};
  }
  return pattern;
}

Result<Selector> Selector::Parse(std::span<const std::string> patterns) {
  Selector selector;
  for (const std::string& text : patterns) {
    const bool excludes = text.starts_with('!');
    Result<Pattern> pattern = ParseOne(std::string_view(text).substr(excludes ? 1 : 0));
    if (!pattern.ok()) return std::move(pattern).error();
    (excludes ? selector.excludes_ : selector.includes_).push_back(*std::move(pattern));
  }
  return selector;
}

Result<Selector> Selector::ParseList(std::string_view patterns) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string> words;
  bool is_blank = true;
  for (bool more = true; more;) {
    const std::size_t comma = std::min(patterns.find(','), patterns.size());
    std::string_view word = patterns.substr(0, comma);
    more = comma < patterns.size();
    patterns.remove_prefix(std::min(comma + 1, patterns.size()));
    word.remove_prefix(std::min(word.find_first_not_of(kBlanks), word.size()));
    words.emplace_back(word.substr(0, word.find_last_not_of(kBlanks) + 1));
    is_blank = is_blank && words.back().empty();
  }
  return is_blank ? Selector() : Parse(words);
}

bool Selector::MatchesAny(const std::vector<Pattern>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const Pattern& pattern) {
    if (pattern.is_regex) return std::regex_search(name.begin(), name.end(), pattern.regex);
    return pattern.glob == name || GlobMatch(pattern.glob, name);
  });
}

bool Selector::Matches(std::string_view name) const {
  if (!includes_.empty() && !MatchesAny(includes_, name)) return false;
  return !MatchesAny(excludes_, name);
}

}  // namespace cgdebug
