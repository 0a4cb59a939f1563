#include "daemon/core/recording/segments/snapshot_index.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace cgdebug::recording {

using layout::IndexRow;

void IndexBlock::Load() const {
  std::call_once(loaded_, [this] { rows_ = std::exchange(load_, nullptr)(); });
}

std::span<const IndexRow> IndexBlock::RowsOf(std::uint32_t slot, std::uint64_t first_row,
                                             std::uint64_t count) const {
  Load();
  const auto is_of_slot = [&](std::uint64_t row) {
    return row < rows_.size() && rows_[row].slot == slot;
  };
  const std::uint64_t end = first_row + count;
  if (first_row < end && is_of_slot(first_row) && is_of_slot(end - 1) && !is_of_slot(end) &&
      (first_row == 0 || !is_of_slot(first_row - 1))) {
    return std::span(rows_).subspan(first_row, count);
  }
  const auto first = std::ranges::lower_bound(rows_, slot, {}, &IndexRow::slot);
  const auto last = std::ranges::upper_bound(rows_, slot, {}, &IndexRow::slot);
  return {first, last};
}

void SnapshotIndex::Sort(std::vector<IndexRow>* rows) {
  std::ranges::sort(*rows, {},
                    [](const IndexRow& row) { return std::tuple(row.slot, row.ordinal); });
}

std::vector<SlotRun> SnapshotIndex::RunsOf(std::span<const IndexRow> rows) {
  std::vector<SlotRun> runs;
  for (const IndexRow& row : rows) {
    if (runs.empty() || runs.back().slot != row.slot) {
      runs.push_back({row.slot, 0, row.replay, row.replay, row.ordinal, row.ordinal});
    }
    ++runs.back().row_count;
    runs.back().last_replay = row.replay;
    runs.back().last_ordinal = row.ordinal;
  }
  return runs;
}

void SnapshotIndex::Add(std::shared_ptr<const IndexBlock> block, const std::vector<SlotRun>& runs) {
  std::uint64_t first_row = 0;
  for (const SlotRun& run : runs) {
    if (run.slot >= slots_.size()) slots_.resize(run.slot + 1);
    slots_[run.slot].push_back({block, run, first_row});
    first_row += run.row_count;
    count_ += run.row_count;
    last_replay_ = std::max(last_replay_, run.last_replay);
  }
}

std::uint64_t SnapshotIndex::count(std::uint32_t slot) const {
  std::uint64_t count = 0;
  if (slot >= slots_.size()) return 0;
  for (const Stretch& stretch : slots_[slot]) count += stretch.run.row_count;
  return count;
}

SnapshotRef SnapshotIndex::RefOf(const Stretch& stretch, const IndexRow& row) {
  return {row.slot, stretch.block->segment(), row.ordinal, row.replay, row.offset, row.iteration};
}

std::size_t SnapshotIndex::StretchOf(std::uint32_t slot, std::uint64_t replay) const {
  const auto& stretches = slots_[slot];
  const auto found = std::ranges::lower_bound(
      stretches, replay, {}, [](const Stretch& stretch) { return stretch.run.last_replay; });
  return static_cast<std::size_t>(found - stretches.begin());
}

std::optional<SnapshotRef> SnapshotIndex::AtOrAfter(std::uint32_t slot,
                                                    std::uint64_t replay) const {
  const SnapshotRange range(this, slot, replay, std::numeric_limits<std::uint64_t>::max());
  const auto first = range.begin();
  if (first == range.end()) return std::nullopt;
  return *first;
}

std::optional<SnapshotRef> SnapshotIndex::WithOrdinal(std::uint32_t slot,
                                                      std::uint64_t ordinal) const {
  if (slot >= slots_.size()) return std::nullopt;
  const auto stretch = std::ranges::lower_bound(
      slots_[slot], ordinal, {}, [](const Stretch& one) { return one.run.last_ordinal; });
  if (stretch == slots_[slot].end()) return std::nullopt;
  const auto rows = stretch->Rows();
  const auto row = std::ranges::lower_bound(rows, ordinal, {}, &IndexRow::ordinal);
  if (row == rows.end() || row->ordinal != ordinal) return std::nullopt;
  return RefOf(*stretch, *row);
}

std::optional<SnapshotRef> SnapshotIndex::Last(std::uint32_t slot) const {
  if (slot >= slots_.size()) return std::nullopt;
  for (std::size_t place = slots_[slot].size(); place-- > 0;) {
    const Stretch& stretch = slots_[slot][place];
    const auto rows = stretch.Rows();
    if (!rows.empty()) return RefOf(stretch, rows.back());
  }
  return std::nullopt;
}

SnapshotRange::Iterator::Iterator(const SnapshotIndex* index, std::uint32_t slot,
                                  std::uint64_t first, std::uint64_t last)
    : index_(index), slot_(slot), last_(last) {
  if (slot >= index->slots_.size()) return;
  done_ = false;
  stretch_ = index->StretchOf(slot, first);
  if (stretch_ < index->slots_[slot].size()) {
    rows_ = index->slots_[slot][stretch_].Rows();
    const auto found = std::ranges::lower_bound(rows_, first, {}, &IndexRow::replay);
    row_ = static_cast<std::size_t>(found - rows_.begin());
  }
  Settle();
}

SnapshotRange::Iterator& SnapshotRange::Iterator::operator++() {
  ++row_;
  Settle();
  return *this;
}

// Goes on to the next stretch that has a row.
void SnapshotRange::Iterator::Settle() {
  const auto& stretches = index_->slots_[slot_];
  while (row_ >= rows_.size()) {
    if (++stretch_ >= stretches.size()) {
      done_ = true;
      return;
    }
    rows_ = stretches[stretch_].Rows();
    row_ = 0;
  }
  ref_ = SnapshotIndex::RefOf(stretches[stretch_], rows_[row_]);
  done_ = ref_.replay > last_;
}

}  // namespace cgdebug::recording
