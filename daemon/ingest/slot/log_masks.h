// log_masks.h: which rows of a session's op logs hold -Inf on purpose, while they are read.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/core/ops/masks.h"
#include "daemon/model/snapshot.h"

namespace cgdebug::ingest {

// What a row inherits may be in another page, so all pages of a session share this. A page may be
// read before the one that its rows inherit from: what cannot be told yet is told when that page
// has been read. It remembers the last replays: of those before, and where the other page is lost,
// nothing is ever told, and the loss says that not all was seen.
//
// Thread: the ingest thread only.
class LogMasks {
 public:
  enum class Answer : std::uint8_t { kNo, kYes, kNotYet };
  // Hears whether it is a mask, after kNotYet.
  using Later = std::function<void(bool is_mask)>;

  // Notes that there is a row of this name, because ROW.value has what the row has.
  void AddRow(const std::string& name, std::uint32_t number) { numbers_[name].insert(number); }
  // As ops::MaskFinder, of the log and the replay that the snapshot is of. To be asked once.
  Answer IsMask(const pipeline::Snapshot& snapshot, const ops::NonfiniteRow& row,
                std::weak_ptr<Later> later);
  // Whether the snapshot, of -Inf and of no other NaN or Inf, has the values of a row that is one.
  // Of a probe that keeps no row's values: kNo.
  Answer IsValueOfMask(const pipeline::Snapshot& snapshot, std::weak_ptr<Later> later);
  // Around the questions for the rows of a page, `first` to `last`. `row`: any of them.
  void BeginPage(const pipeline::Snapshot& row, std::uint32_t first, std::uint32_t last);
  void EndPage(const pipeline::Snapshot& row);

 private:
  // Its graph, when it began or its number, and the iteration of a conditional body. Rows of pages
  // have the number of the replay or call. In eager runs of a job that uses a GPU, each row is a
  // slot by itself and counts its own replays: such a log is known by the order of its first row,
  // and if others were registered in between, its rows inherit nothing.
  using Run = std::tuple<bool, std::uint64_t, std::uint64_t, std::uint32_t>;
  struct Waiting {
    std::uint32_t number = 0;  // 0: it has the values of a row
    std::string name = {};     // of that row
    std::string op = {};
    std::vector<std::uint32_t> inputs = {};
    double share = 0;
    std::weak_ptr<Later> later = {};
  };
  struct OneRun {
    Run run;
    ops::MaskFinder masks = {};
    std::map<std::string, bool> told = {};  // of rows with NaN or Inf, by name
    std::vector<std::pair<std::uint32_t, std::uint32_t>> read = {};  // first and last rows of pages
    std::vector<Waiting> waiting = {};

    bool IsRead(std::uint32_t number) const;
    bool IsWaitedFor(std::uint32_t number) const;
  };

  static Run RunOf(const pipeline::Snapshot& snapshot, std::uint32_t number);
  OneRun& At(const Run& run);
  bool CanTell(const OneRun& run, const Waiting& one) const;

  std::deque<OneRun> runs_;  // by the first row that was asked for
  std::map<std::string, std::set<std::uint32_t>> numbers_;
};

}  // namespace cgdebug::ingest
