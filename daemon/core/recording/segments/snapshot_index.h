// snapshot_index.h: where the snapshots of each slot lie; rows of an index record are looked at
// when they are first needed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/segments/segment_file.h"
#include "proto/layout/recording_layout.h"

namespace cgdebug::recording {

struct SnapshotRef {
  std::uint32_t slot = 0;
  std::uint32_t segment = 0;  // place in the reader, from 0
  std::uint64_t ordinal = 0;
  std::uint64_t replay = 0;
  std::uint64_t offset = 0;  // of the record in the segment's file
  std::uint32_t iteration = 0;
  bool operator==(const SnapshotRef&) const = default;
};

// Rows of one stretch of a segment, sorted by slot, then ordinal.
class IndexBlock {
 public:
  using Rows = std::vector<layout::IndexRow>;
  IndexBlock(std::uint32_t segment, std::function<Rows()> load)
      : segment_(segment), load_(std::move(load)) {}

  std::uint32_t segment() const { return segment_; }
  // Thread: any, as RowsOf().
  void Load() const;
  // The rows of one slot. `first` and `count`: where they are likely to be, which saves the search.
  std::span<const layout::IndexRow> RowsOf(std::uint32_t slot, std::uint64_t first,
                                           std::uint64_t count) const;

 private:
  std::uint32_t segment_;
  mutable std::once_flag loaded_;
  mutable std::function<Rows()> load_;
  mutable Rows rows_;
};

class SnapshotRange;

// Thread: const functions any; Add() alone.
class SnapshotIndex {
 public:
  // `runs`: one for each slot that has rows in the block.
  void Add(std::shared_ptr<const IndexBlock> block, const std::vector<SlotRun>& runs);
  // The runs of sorted rows.
  static std::vector<SlotRun> RunsOf(std::span<const layout::IndexRow> rows);
  static void Sort(std::vector<layout::IndexRow>* rows);

  std::uint64_t count() const { return count_; }
  std::uint64_t count(std::uint32_t slot) const;
  std::uint64_t last_replay() const { return last_replay_; }
  std::optional<SnapshotRef> WithOrdinal(std::uint32_t slot, std::uint64_t ordinal) const;
  // The first snapshot of the slot at or after `replay`.
  std::optional<SnapshotRef> AtOrAfter(std::uint32_t slot, std::uint64_t replay) const;
  std::optional<SnapshotRef> Last(std::uint32_t slot) const;

 private:
  friend class SnapshotRange;
  struct Stretch {
    std::shared_ptr<const IndexBlock> block;
    SlotRun run;
    std::uint64_t first_row = 0;  // in the block, if it has the rows that its runs say

    std::span<const layout::IndexRow> Rows() const {
      return block->RowsOf(run.slot, first_row, run.row_count);
    }
  };
  static SnapshotRef RefOf(const Stretch& stretch, const layout::IndexRow& row);
  // The first stretch that may hold `replay` or later.
  std::size_t StretchOf(std::uint32_t slot, std::uint64_t replay) const;

  std::vector<std::deque<Stretch>> slots_;
  std::uint64_t count_ = 0;
  std::uint64_t last_replay_ = 0;
};

// Ascending by ordinal, and with it by replay.
// Lifetime: until the reader that it came from is refreshed or destroyed.
class SnapshotRange {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = SnapshotRef;
    using difference_type = std::ptrdiff_t;
    using pointer = const SnapshotRef*;
    using reference = const SnapshotRef&;

    Iterator() = default;
    Iterator(const SnapshotIndex* index, std::uint32_t slot, std::uint64_t first,
             std::uint64_t last);
    reference operator*() const { return ref_; }
    pointer operator->() const { return &ref_; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const { return done_ == other.done_; }

   private:
    void Settle();

    const SnapshotIndex* index_ = nullptr;
    std::uint32_t slot_ = 0;
    std::uint64_t last_ = 0;
    std::size_t stretch_ = 0;
    std::span<const layout::IndexRow> rows_;
    std::size_t row_ = 0;
    SnapshotRef ref_;
    bool done_ = true;
  };

  SnapshotRange(const SnapshotIndex* index, std::uint32_t slot, std::uint64_t first,
                std::uint64_t last)
      : index_(index), slot_(slot), first_(first), last_(last) {}
  Iterator begin() const { return Iterator(index_, slot_, first_, last_); }
  Iterator end() const { return Iterator(); }

 private:
  const SnapshotIndex* index_;
  std::uint32_t slot_;
  std::uint64_t first_;
  std::uint64_t last_;
};

}  // namespace cgdebug::recording
