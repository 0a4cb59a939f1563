// log_masks.h: which rows of a session's op logs hold -Inf on purpose, while they are read.
#pragma once

#include <cstdint>
#include <deque>
#include <tuple>
#include <utility>

#include "daemon/core/ops/masks.h"
#include "daemon/model/snapshot.h"

namespace cgdebug::ingest {

// What a row inherits may be in another page, so all pages of a session share this. It remembers a
// few replays: pages of one replay are read one after another. A row whose input was lost, or was
// read longer ago, is taken for no mask.
//
// Thread: the ingest thread.
class LogMasks {
 public:
  // As ops::MaskFinder, of the log and the replay that the snapshot is of.
  bool IsMask(const pipeline::Snapshot& snapshot, const ops::NonfiniteRow& row);

 private:
  // When it began, its graph, and the iteration of a conditional body. In eager runs of a job that
  // uses a GPU, each row is a slot by itself and counts its own replays: such a log is known by the
  // order of its first row, and if others were registered in between, its rows inherit nothing.
  using Run = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;

  std::deque<std::pair<Run, ops::MaskFinder>> runs_;  // by the first row that was asked for
};

}  // namespace cgdebug::ingest
