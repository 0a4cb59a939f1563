// lead_up.h: what came before the first bad snapshot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/analysis/check/check.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// One probe's snapshots, of the replays that are looked at.
struct SeenProbe {
  std::size_t slot = 0;
  std::vector<source::Key> keys;
  std::vector<double> abs_max;  // of each key; NaN where it is not known
};

// The snapshot of one replay, of its first iteration; null when there is none.
const source::Key* KeyOf(const SeenProbe& probe, std::uint64_t replay);

// Fills in the frames, the earlier replays, the growth and the jump of `first`.
// Requires: its place in `of_graph`, which is in graph order.
void DescribeLeadUp(source::Source& source, const std::vector<const SeenProbe*>& of_graph,
                    std::size_t max_frames, FirstBad* first);

}  // namespace cgdebug::analysis
