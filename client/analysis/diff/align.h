// align.h: which snapshot of one source is compared with which snapshot of another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/base/glob.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/ops/op_text.h"

namespace cgdebug::analysis {

// The part of a source to look at.
struct Scope {
  Selector probes;
  WhichSlots which;
  std::uint64_t first_replay = 1;
  std::uint64_t last_replay = UINT64_MAX;
  std::function<bool(int rank)> wants_rank = {};             // empty: all
  std::function<bool(const source::Slot&)> wants_slot = {};  // of the source itself; empty: all

  bool Wants(const source::Slot& slot) const {
    return !slot.op.is_no_row() && !slot.op.is_input_end() && probes.Matches(slot.probe) &&
           Matches(which, slot) && WantsRank(slot) && (!wants_slot || wants_slot(slot));
  }
  bool WantsRank(const source::Slot& slot) const { return !wants_rank || wants_rank(slot.rank); }
  bool Wants(std::uint64_t replay) const { return replay >= first_replay && replay <= last_replay; }
  // Whether a part of the gap may lie in the replays to look at.
  bool Wants(const source::Gap& gap) const {
    const bool is_before = gap.before_replay > 0 && gap.before_replay <= first_replay;
    return !is_before && gap.after_replay < last_replay;
  }
  // Whether the scope includes what came after the end of a source.
  bool is_open_ended() const { return last_replay == UINT64_MAX; }
  bool has_all_replays() const { return first_replay <= 1 && is_open_ended(); }
};

// The slots that `scope` wants, in graph order, then by rank.
std::vector<std::size_t> WantedSlots(const source::Source& source, const Scope& scope);
// The snapshots of a slot whose replays it wants.
Result<std::vector<source::Key>> WantedKeys(source::Source& source, std::size_t slot,
                                            const Scope& scope);

struct AlignOptions {
  Scope scope;
  bool by_order = false;                     // of the graph, whatever the names are
  bool by_step = false;                      // the user's own step instead of the replay
  std::map<std::string, std::string> names;  // A's name -> B's; other names are the same in both
};

struct SlotPair {
  std::size_t a;
  std::size_t b;
};

struct SnapshotPair {
  std::uint64_t position = 0;  // replay, or step
  std::uint64_t nth = 0;       // the iteration in that replay, or the n-th of the step, from 0
  std::size_t pair = 0;        // place in Alignment::slots
  // The serial of A's snapshot, where conditional bodies make it the order within a replay; else 0.
  std::uint64_t serial = 0;
  source::Key a;
  source::Key b;
};

struct Alignment {
  std::vector<SlotPair> slots;          // in graph order of A
  std::vector<SnapshotPair> snapshots;  // by position, then in the order in which they came
  // Sentences about what only one side has, and how many snapshots that is.
  std::vector<std::string> unmatched;
  std::uint64_t unmatched_count = 0;
};

// Fails: a source that cannot be read; by_step where no snapshot has a step.
Result<Alignment> Align(source::Source& a, source::Source& b, const AlignOptions& options);

// "1..24, 30" of ascending numbers, at most a few runs.
std::string RangesText(const std::vector<std::uint64_t>& numbers);

// "by rank: different on 2, no difference seen on 0..1, 3\n": `bad` says which ranks were, of all
// that were looked at. Empty for a single rank.
std::string ByRankText(const std::map<int, bool>& bad, const char* is_bad, const char* is_not);

// Lines of "NAME_IN_A NAME_IN_B"; '#' begins a comment. Fails: another number of words, a name
// twice.
Result<std::map<std::string, std::string>> ParseNameMap(const std::string& text);

}  // namespace cgdebug::analysis
