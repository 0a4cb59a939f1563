// selector.h: what a person types to name ranks and tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/graph_labels.h"
#include "daemon/core/base/result.h"

namespace cgdebug::cli {

// "0,1,8..15"; empty selects every rank.
class RankSet {
 public:
  struct Range {
    int first;
    int last;
  };
  // Fails: anything except a comma list of numbers and ranges; the message shows a correct one.
  static Result<RankSet> Parse(std::string_view text);

  bool selects_all() const { return ranges_.empty(); }
  bool Contains(int rank) const;
  // The only rank, or -1 when there are several or all.
  int Single() const;
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// [SOURCE:]PROBE[{SHAPE}][@g:GRAPH][@REPLAY[.ITERATION][SLICE]]; of an eager call also
// @call:REPLAY.
struct Inside {
  std::string text;    // as typed, without what follows it: a probe's name may have colons
  std::string source;  // what stands before the first colon, "" for none and for "live"
  std::string probe;
  WhichSlots which;          // {16,100}, @g:bs=8
  std::int64_t replay = -1;  // from 1; negatives count back from the newest
  // With a replay from 1: which run of a conditional body in it, from 0. Without one: the last.
  std::optional<std::uint32_t> iteration = std::nullopt;
  bool first_nan = false;  // instead: the first replay with NaN or Inf
  std::int64_t step = -1;  // instead: the first replay of the user's own step
  std::string slice;       // "[0,:8]", empty for all of it
};

// Fails: an empty probe, a replay of 0, or one that is not a number, "first-nan" or "step:N".
// The message ends with a command.
Result<Inside> ParseInside(std::string_view text);

// "blk[0][-2:,:5]" names the newest tensor of blk[0], sliced. A name may end in brackets, so look
// for the whole text as a name first. True if `inside` now names another tensor.
bool TakeSliceOffName(Inside* inside);

}  // namespace cgdebug::cli
