// glob.h: selects probes by patterns.
//
//   'blk*.attn.out'   glob: * any run, ? any one byte, [a-c] [!a-c] one of a set, . itself
//   're:blk[0-9]+$'   regular expression (ECMAScript), found anywhere in the name
//   '!blk3.*'         excludes; wins over every include
//   (none)            everything; only excludes: everything else
#pragma once

#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/result.h"

namespace cgdebug {

// Whether all of `text` matches. An unclosed '[' and a trailing backslash stand for themselves; a
// backslash takes the next character literally. Linear in practice: no pattern makes it explode.
bool GlobMatch(std::string_view pattern, std::string_view text);

// Thread: Matches() from any thread.
class Selector {
 public:
  // Selects everything.
  Selector() = default;

  // Fails: an empty pattern, a bad regular expression, or one longer than 1000 bytes; the message
  //        names it.
  static Result<Selector> Parse(std::span<const std::string> patterns);
  // Parses patterns separated by commas. Ignores blanks around a pattern; blanks and commas alone
  // select everything. Fails: as Parse().
  static Result<Selector> ParseList(std::string_view patterns);

  // A glob also selects the name that is spelled exactly like it: 'blk[0]' finds 'blk[0]'.
  bool Matches(std::string_view name) const;
  bool selects_everything() const { return includes_.empty() && excludes_.empty(); }

 private:
  struct Pattern {
    std::string glob;
    std::regex regex;
    bool is_regex = false;
  };
  static Result<Pattern> ParseOne(std::string_view text);
  static bool MatchesAny(const std::vector<Pattern>& patterns, std::string_view name);

  std::vector<Pattern> includes_;
  std::vector<Pattern> excludes_;
};

}  // namespace cgdebug
