// check.h: what is wrong with a source by itself: the first NaN or Inf in graph order and what led
// to it, values near the end of their type, tensors that stopped changing or never came.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/diff/align.h"
#include "client/source/source.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::analysis {

struct CheckOptions {
  Scope scope;
  std::size_t frames = 21;     // probes shown up to the first bad one
  bool trusts_hashes = false;  // does not read the values, so that their damage is not seen
};

struct Frame {
  std::size_t slot = 0;
  source::Key key;
  numerics::Stats stats;
};

// A probe whose largest value grew more from one snapshot to the next than values do.
struct Jump {
  std::size_t slot = 0;
  std::uint64_t replay = 0;  // of the larger one
  double from = 0;           // abs max
  double to = 0;
};

struct FirstBad {
  std::size_t slot = 0;
  source::Snapshot snapshot = {};
  numerics::Stats stats = {};
  std::uint64_t next_call = 0;  // as NextCallOf()
  std::size_t place = 0;        // in graph order, from 1
  std::size_t place_count = 0;  // probes of that graph
  // What led to it, from earlier replays of its graph on; the last is this one.
  std::vector<Frame> frames = {};
  struct Earlier {
    source::Key key;
    double abs_max;
  };
  std::vector<Earlier> earlier = {};  // the same probe, the last replays before
  double growth = 0;              // of abs_max per replay, over them; 0: not growing, or not evenly
  std::optional<Jump> jump = {};  // the first one in its graph, before it
};

enum class FindingKind {
  kNonfinite,     // one per probe
  kMismatch,      // a comparison that failed; one per probe
  kNearOverflow,  // above half of the dtype's largest
  kStale,         // stopped changing while an earlier probe of its graph still did
  kNeverWritten,  // has no snapshot though others of its graph have
  // These may be intended, so `check` does not exit 1 because of them:
  kConstant,  // never changed while an earlier probe of its graph did: a weight, a mask?
  kZero,      // nothing but zeros in every replay
  // A row with the largest number of its dtype, or a probe with the lowest or bfloat16's: masks
  // have.
  kLargest,
  // Rows of op logs with NaN or Inf that has an excuse (masks.h):
  kMask,          // -Inf, maybe on purpose
  kAbsorbed,      // no later row inherits it
  kPadding,       // in padding rows alone
  kSkipped,       // gradients of a step that torch's GradScaler skipped
  kRowsNotKnown,  // made of such padding, in rows of which nobody knows whether they are real
  kMayHaveOne,    // a row that would tell whether it has one of these is not here
  kScaled,        // near overflow: a gradient that it has scaled
};
constexpr std::string_view NameOf(FindingKind kind) {
  constexpr std::string_view kNames[] = {
      "nonfinite", "mismatch", "near_overflow",  "stale",          "never_written",
      "constant",  "zero",     "largest",        "mask",           "absorbed",
      "padding",   "skipped",  "rows_not_known", "may_be_excused", "scaled"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(FindingKind::kScaled) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

struct Finding {
  FindingKind kind;
  std::size_t slot = 0;
  std::uint64_t first_replay = 0;
  std::uint64_t last_replay = 0;
  std::uint64_t count = 0;  // snapshots
  double worst = 0;         // near overflow, largest: the largest share of the dtype's maximum
  // The daemon found it in a snapshot that is not here; `count` is 1, and later ones are not known.
  std::optional<source::Finding> told = {};
  bool is_bad() const { return kind < FindingKind::kConstant; }
};
// Whether nobody knows if it is bad, so that an answer with it is inconclusive.
constexpr bool IsOpen(FindingKind kind) {
  return kind == FindingKind::kRowsNotKnown || kind == FindingKind::kMayHaveOne;
}

// The first NaN, or the first Inf, of one process that has no excuse.
struct FirstOfKind {
  std::size_t slot = 0;
  std::uint64_t replay = 0;
  source::Moment moment = {};
  std::uint64_t serial = 0;  // as source::Snapshot's; that of `moment` is 0 where calls are counted
  std::int64_t step = -1;
  std::uint64_t count = 0;      // elements; 0: not known
  std::uint64_t next_call = 0;  // as NextCallOf()
};
using FirstsOfKind = std::map<std::string, FirstOfKind>;  // by uuid of the process
void TakeIfFirst(const source::Slot& slot, const FirstOfKind& one, FirstsOfKind* firsts);

// How many of the probes that ought to have a snapshot of a replay have one.
struct Presence {
  std::uint64_t replay = 0;
  std::size_t present = 0;
  std::size_t expected = 0;
};

// Kernels whose results no row of an op log shows.
struct UnseenKernels {
  std::uint64_t count = 0;
  std::string first = {};  // where the first of them are
};

struct Check {
  std::optional<FirstBad> first;
  // What the daemon found before that in a snapshot that is not here.
  std::optional<source::Finding> first_told;
  FirstsOfKind first_nan, first_inf;
  std::vector<Finding> findings;  // by kind, then in graph order
  std::uint64_t snapshots = 0;
  std::size_t slots = 0;
  std::size_t in_part = 0;  // of these, the ones of which only a part was recorded
  std::uint64_t last_replay = 0;
  // What the numbers of replays count: "replay", or "call" of eager probes.
  std::string replay_word = "replay";
  Presence presence;
  bool values_read = true;           // and checked against their hashes
  std::vector<std::string> missing;  // sentences
  std::uint64_t missing_count = 0;
  std::vector<std::uint64_t> replays;  // that were looked at, of any probe; ascending
  std::map<int, bool> ranks;           // that were looked at, and whether something bad was found
  UnseenKernels unseen_kernels;
  bool goes_on = false;        // more will come, and does not count as missing
  recording::Account account;  // of the probes that were looked at
  // How often a row was not finite in a replay or call of which nobody has the rows any more.
  std::uint64_t let_go = 0;
  // Of a live job: the missing snapshots that the daemon read before it let them go, if it saw
  // neither NaN nor Inf in any snapshot. 0 where it saw only parts of tensors.
  std::uint64_t seen_finite = 0;

  bool found() const {
    for (const Finding& finding : findings) {
      if (finding.is_bad()) return true;
    }
    return false;
  }
  // Probes whose NaN or Inf may lie in padding rows alone.
  std::size_t rows_not_known() const { return CountOf(FindingKind::kRowsNotKnown); }
  std::size_t may_be_excused() const { return CountOf(FindingKind::kMayHaveOne); }
  // How often there are NaN or Inf of which nobody knows whether they have an excuse.
  std::uint64_t open() const {
    const auto is_open = [](const Finding& one) { return IsOpen(one.kind); };
    return static_cast<std::uint64_t>(std::ranges::count_if(findings, is_open)) + let_go;
  }
  // Whether "nothing found" may be said: something was looked at, and nothing was missing.
  bool complete() const {
    return missing_count == 0 && unseen_kernels.count == 0 && open() == 0 && snapshots > 0;
  }
  Outcome outcome() const { return OutcomeOf(found(), complete()); }

 private:
  std::size_t CountOf(FindingKind kind) const {
    std::size_t count = 0;
    for (const Finding& one : findings) count += one.kind == kind ? 1 : 0;
    return count;
  }
};

// Fails: a source that cannot be read.
Result<Check> RunCheck(source::Source& source, const CheckOptions& options);

}  // namespace cgdebug::analysis
