#include "daemon/ingest/slot/shown_slots.h"

#include <cstring>
#include <memory>
#include <utility>

namespace cgdebug::ingest {
namespace {

ring::Entry RowOf(const ring::Entry& entry, std::size_t number) {
  ring::Entry row = {.ordinal = entry.ordinal,
                     .replay = entry.replay,
                     .iteration = entry.iteration,
                     .serial = entry.serial,
                     .timestamp_ns = entry.timestamp_ns,
                     .step = entry.step,
                     .flags = (entry.flags & layout::kEntryForced) | layout::kEntryIsStats,
                     .payload = {}};
  std::memcpy(&row.stats, entry.payload.data() + number * sizeof(row.stats), sizeof(row.stats));
  return row;
}

}  // namespace

ShownSlots::ShownSlots(const pipeline::SlotPtr& slot, const std::vector<ring::OpLogRow>& rows,
                       const Destination& destination)
    : destination_(destination),
      are_rows_((slot->registration.flags & layout::kSlotHoldsOpLog) != 0) {
  const pipeline::SnapshotMaker maker(destination_.payloads);
  if (!are_rows_) {
    shown_.push_back({.slot = slot, .maker = maker});
    return;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    shown_.push_back({.slot = std::make_shared<const pipeline::SlotIdentity>(
                          pipeline::MakeRowIdentity(*slot, i, rows[i])),
                      .maker = maker});
  }
}

std::vector<pipeline::SlotPtr> ShownSlots::slots() const {
  std::vector<pipeline::SlotPtr> slots;
  for (const Shown& shown : shown_) slots.push_back(shown.slot);
  return slots;
}

// The indexes of an op log's rows follow one another.
std::size_t ShownSlots::NumberOf(const pipeline::SlotPtr& slot) const {
  if (shown_.empty() || slot->index < shown_.front().slot->index) return shown_.size();
  const std::size_t number = slot->index - shown_.front().slot->index;
  return number < shown_.size() && shown_[number].slot == slot ? number : shown_.size();
}

ring::Entry ShownSlots::EntryOf(ring::Entry entry, std::size_t number) const {
  return are_rows_ ? RowOf(entry, number) : std::move(entry);
}

ring::ReadStatus ShownSlots::Read(const ring::SlotRingReader& ring, std::uint64_t ordinal,
                                  ring::Entry* entry, ring::PayloadId held) const {
  const ring::ReadStatus status = ring.Read(ordinal, entry, held);
  if (status != ring::ReadStatus::kOk || !are_rows_) return status;
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    const pipeline::SlotIdentity& row = *shown_[i].slot;
    if (!ring::IsPlausible(RowOf(*entry, i).stats, row.registration, layout::IsOfPadding(row.op))) {
      return ring::ReadStatus::kDamaged;
    }
  }
  return status;
}

void ShownSlots::Make(ring::Entry* entry, const layout::SlotControl& control) {
  for (std::size_t i = 0; i < shown_.size(); ++i) {
    Shown& shown = shown_[i];
    if (!are_rows_) {
      shown.made = shown.maker.Make(shown.slot, entry, control);
      continue;
    }
    ring::Entry row = RowOf(*entry, i);
    shown.made = shown.maker.Make(shown.slot, &row, control);
  }
}

pipeline::StoredSnapshot ShownSlots::Take(std::size_t number) {
  return std::exchange(shown_[number].made, {});
}

void ShownSlots::DropMade() {
  for (Shown& shown : shown_) shown.made = {};
}

void ShownSlots::ForgetMade() {
  DropMade();
  for (Shown& shown : shown_) shown.maker = pipeline::SnapshotMaker(destination_.payloads);
}

void ShownSlots::Lose(pipeline::Gap gap) const {
  for (const Shown& shown : shown_) {
    gap.slot = shown.slot;
    destination_.sink->Lose(gap);
  }
}

void ShownSlots::Close(std::uint64_t last_replay, pipeline::SlotFeedback& feedback) const {
  for (const Shown& shown : shown_) destination_.sink->CloseSlot(shown.slot, last_replay, feedback);
}

}  // namespace cgdebug::ingest
