// why.h: causes. Detectors look at the rows of a source and say what went wrong, with the rows that
// show it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/check/check.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::analysis::why {

enum class Level {
  kVerified,    // and a second run of the replay, which has the same bits, shows it, too
  kShown,       // it follows from recorded bits
  kConsistent,  // a pattern of a fault, which may also be meant
};
constexpr std::string_view NameOf(Level level) {
  switch (level) {
    case Level::kVerified:
      return "verified";
    case Level::kShown:
      return "shown";
    case Level::kConsistent:
      break;
  }
  return "consistent";
}

// A row of an op log, or a probe, at one replay of its slot.
struct Place {
  std::size_t slot = 0;
  std::uint64_t replay = 0;    // of the slot; 0: none in particular
  std::size_t log = SIZE_MAX;  // places in Evidence::logs and Log::rows; SIZE_MAX: a probe
  std::size_t row = SIZE_MAX;
  // "where": the command that shows it, given the source. Empty: the one that shows the row or
  // probe.
  std::string_view command = {};
};

// A row that is evidence, and what it shows.
struct Fact {
  Place place;
  std::string text;
};

struct Finding {
  Level level = Level::kShown;
  std::string_view kind;         // "nonfinite"; one per cause
  Place place;                   // where it is
  std::string sentence = {};     // what is wrong, and where
  std::vector<Fact> facts = {};  // what it rests on
  // Rows that are made of it, as places in the log's rows, in the order of the log.
  std::vector<std::size_t> follows = {};
  std::string refute = {};  // what would show that it is none
  // Findings of the same level or a lower one that lie in what follows from it.
  std::vector<Finding> folded = {};
};

struct Causes {
  std::vector<Finding> findings;        // first the one to look at first
  std::vector<std::string> clean;       // what was looked at, and nothing found: sentences
  std::vector<std::string> not_looked;  // what was not, and why: sentences
  // What needs more than was recorded, and how to ask for it: sentences. Nobody asked, so it does
  // not make the answer incomplete.
  std::vector<std::string> not_asked;
  bool goes_on = false;       // of a live job: more will come
  bool stands_still = false;  // likewise: it has not moved for a while

  bool found() const { return !findings.empty() && findings.front().level != Level::kConsistent; }
  // Whether "nothing found" may be said.
  bool complete() const { return not_looked.empty(); }
  Outcome outcome() const { return OutcomeOf(found(), complete()); }
};

// Fails: a source that cannot be read.
Result<Causes> FindCauses(source::Source& source);
// The same about NaN and Inf of padding that reach real rows, and nothing else.
Result<Causes> FindPaddingCauses(source::Source& source);

}  // namespace cgdebug::analysis::why
