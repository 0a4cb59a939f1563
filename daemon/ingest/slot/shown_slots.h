// shown_slots.h: the slots that clients see of one slot of the directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/ingest/destination.h"
#include "daemon/pipeline/snapshot_maker.h"
#include "libprobe/ring/segment/segment_view.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// The slot itself, or one per row of its op log. Each ring entry is one snapshot of every row, so a
// lost entry is a loss of every row.
//
// Thread: as SlotConsumer.
class ShownSlots {
 public:
  // `slot`: that of the directory. `rows`: those of a slot that holds an op log. What `destination`
  // points to outlives this.
  ShownSlots(const pipeline::SlotPtr& slot, const std::vector<ring::OpLogRow>& rows,
             const Destination& destination);

  std::vector<pipeline::SlotPtr> slots() const;
  std::size_t size() const { return shown_.size(); }
  const pipeline::SlotPtr& slot(std::size_t number) const { return shown_[number].slot; }
  // size() if it is none of them.
  std::size_t NumberOf(const pipeline::SlotPtr& slot) const;
  bool are_rows() const { return are_rows_; }

  // What an entry of the ring says about one of them; of a row, its statistics.
  ring::Entry EntryOf(ring::Entry entry, std::size_t number) const;
  // As SlotRingReader::Read. The ring knows nothing of rows: if one of them cannot be true, none of
  // that entry is believed.
  ring::ReadStatus Read(const ring::SlotRingReader& ring, std::uint64_t ordinal, ring::Entry* entry,
                        ring::PayloadId held = {}) const;

  // Makes a snapshot of each. Takes the entry's payload, unless they are rows. `control`: as for
  // SnapshotMaker::Make.
  void Make(ring::Entry* entry, const layout::SlotControl& control);
  // What Make() left; Take() leaves nothing.
  pipeline::StoredSnapshot& made(std::size_t number) { return shown_[number].made; }
  pipeline::StoredSnapshot Take(std::size_t number);
  void DropMade();
  // The next snapshots follow none.
  void ForgetMade();
  // SnapshotMaker::previous_payload() of the first.
  pipeline::PayloadPtr previous_payload() const { return shown_.front().maker.previous_payload(); }

  // Tells the sinks of a loss, or of the end, of each.
  void Lose(pipeline::Gap gap) const;
  void Close(std::uint64_t last_replay, pipeline::SlotFeedback& feedback) const;

 private:
  struct Shown {
    pipeline::SlotPtr slot;
    pipeline::SnapshotMaker maker;
    pipeline::StoredSnapshot made = {};
  };

  Destination destination_;
  bool are_rows_;
  std::vector<Shown> shown_;
};

}  // namespace cgdebug::ingest
