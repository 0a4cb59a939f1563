// entry_reader.h: copies the entries of one ring, one after another, and makes snapshots of them.
#pragma once

#include <cstdint>
#include <utility>

#include "daemon/ingest/destination.h"
#include "daemon/ingest/slot/shown_slots.h"
#include "daemon/ingest/slot/slot_clock.h"
#include "daemon/ingest/slot/slot_comparison.h"
#include "daemon/ingest/slot/slot_progress.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// Begins with the newest of the entries that an earlier daemon consumed and that are still in the
// ring, for the memory of last values only.
//
// Thread: the ingest thread, under a SigbusGuard; Prepare() on any one thread, if nothing else of
//         the slot's consumer runs meanwhile.
class EntryReader {
 public:
  // What Prepare() found, beside the snapshots that `shown` holds.
  struct Prepared {
    ring::ReadStatus status = ring::ReadStatus::kNone;
    bool seen_before = false;  // an earlier daemon consumed it
    bool no_memory = false;    // with kDamaged: only the place of the entry is known
    bool cut_off = false;      // it met truncated memory
    ring::Entry entry;
    pipeline::ComparisonPtr comparison;

    bool Has(std::uint32_t flag) const { return (entry.flags & flag) != 0; }
    // Whether there is nothing but the header: values and statistics are on the device.
    bool is_header_alone() const {
      return Has(layout::kEntryOnDevice) && !Has(layout::kEntryIsStats);
    }
  };

  // All that are pointed to outlive this.
  EntryReader(pipeline::SlotPtr slot, const ring::SlotRingReader* ring,
              const Destination* destination, SlotProgress* progress, ShownSlots* shown,
              SlotClock* clock, SlotComparison* comparison)
      : slot_(std::move(slot)),
        ring_(ring),
        destination_(destination),
        progress_(progress),
        shown_(shown),
        clock_(clock),
        comparison_(comparison) {}

  // Requires: the progress is that of earlier daemons.
  void Start();
  // How many entries they consumed, and whether the next one is of those.
  std::uint64_t consumed_before() const { return consumed_before_; }
  bool IsReadingAgain() const { return again_ != 0; }

  // Copies the next entry, and computes what is said about it.
  void Prepare();
  Prepared& prepared() { return prepared_; }

 private:
  bool NeedsAllAgain() const;
  std::uint64_t payload_bytes() const { return slot_->registration.payload_bytes; }
  void PrepareAgain();
  void PrepareNext();
  ring::ReadStatus Read(ring::PayloadId held);
  void MakeSnapshot();

  pipeline::SlotPtr slot_;
  const ring::SlotRingReader* ring_;
  const Destination* destination_;
  SlotProgress* progress_;
  ShownSlots* shown_;
  SlotClock* clock_;
  SlotComparison* comparison_;
  Prepared prepared_;
  // The payload of the last snapshot with values, if the slot skips unchanged ones. It need not be
  // copied again while somebody still has it.
  ring::PayloadId last_payload_;
  std::uint64_t consumed_before_ = 0;
  // The next ordinal that is read again, up to consumed_before_; 0 = none.
  std::uint64_t again_ = 0;
};

}  // namespace cgdebug::ingest
