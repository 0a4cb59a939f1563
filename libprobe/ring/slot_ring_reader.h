// slot_ring_reader.h: the reader's end of one slot's ring, in the daemon or in the job itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/ring/credit.h"
#include "libprobe/ring/head_watch.h"
#include "proto/layout/device_stats.h"
#include "proto/layout/segment_layout.h"
#include "proto/layout/slot_control.h"
#include "proto/layout/verdict.h"

namespace cgdebug::ring {

// Which payload an entry has, of a slot that skips unchanged tensors.
struct PayloadId {
  std::uint64_t number = 0;  // EntryHeader::reference; 0: of another slot, or statistics
  std::uint64_t checksum = 0;
};

// One snapshot, copied out of the ring and known to be whole.
struct Entry {
  std::uint64_t ordinal = 0;    // of accepted entries, from 1
  std::uint64_t replay = 0;     // from 1
  std::uint32_t iteration = 0;  // of a conditional body within the replay
  std::uint64_t serial = 0;     // of the replay; only slots of the same replay share it
  std::int64_t timestamp_ns = 0;
  std::int64_t step = -1;
  std::uint32_t flags = 0;      // layout::kEntry...
  std::uint64_t reference = 0;  // EntryHeader::reference
  // registration().payload_bytes; empty with kEntryIsStats or kEntryOnDevice. A value that came
  // through the window has neither flag.
  std::vector<std::byte> payload;
  layout::DeviceStats stats = {};  // with kEntryIsStats
  PayloadId payload_id;
  bool is_held = false;  // the caller has its payload already: `payload` holds anything
};

using layout::Verdict;

// The first replay of a slot in which a daemon saw NaN, or Inf.
struct FirstNonfinite {
  std::uint64_t replay = 0;  // 0: none yet
  std::int64_t step = -1;
  std::uint64_t count = 0;   // elements
  std::uint64_t serial = 0;  // of the replay
};
struct FirstNonfinites {
  FirstNonfinite nan;
  FirstNonfinite inf;
};

enum class ReadStatus {
  kOk,
  kNone,         // not committed yet
  kOverwritten,  // a newer snapshot took its place, before or while it was copied
  kGone,         // the block was given to another slot
  kDamaged,      // committed, but its bytes do not match its checksum
};

// Thread:   one at a time; only the process that holds the reader's lock may consume.
// Lifetime: points into the mapping of the SegmentView or SegmentWriter it came from.
class SlotRingReader {
 public:
  // Validates the registration at `block`, which has `block_bytes`. `word` is the directory word
  // that was read before the place of the block.
  // Fails: nullopt with the reason in *reason if the registration is not what a producer writes;
  //        with an empty reason if the block was given to another slot since `word` was read.
  static std::optional<SlotRingReader> Open(std::byte* block, std::uint64_t block_bytes,
                                            const layout::DirectoryEntry* directory,
                                            std::uint64_t word, std::string* reason);

  // The validated copy. Nothing in shared memory can change it any more.
  const layout::SlotRegistration& registration() const { return registration_; }
  std::uint64_t generation() const { return layout::DirectoryGeneration(word_); }

  std::uint64_t accepted() const;  // ordinal of the newest committed entry
  std::uint64_t replay() const;    // replays seen
  std::uint64_t consumed() const;
  std::int64_t last_timestamp_ns() const;  // as the writer stamped it
  HeadWatch head_watch() const;
  layout::SlotHead head() const;  // counters, each read once; none is older than `accepted`
  Credit credit() const;

  // Copies entry `ordinal`; reuses `out->payload`. Reports kDamaged only after a second read. A
  // payload that the caller holds is not copied again.
  ReadStatus Read(std::uint64_t ordinal, Entry* out, PayloadId held = {}) const;

  // The ordinal of the entry of `replay` and `iteration`, without one of its last iteration, found
  // by the headers alone; 0 if the ring does not hold it.
  std::uint64_t FindReplay(std::uint64_t replay,
                           std::optional<std::uint32_t> iteration = std::nullopt) const;

  // Copies the values of `ordinal` out of the window of a ring in device memory; false if they are
  // not in it, or not whole.
  bool ReadWindow(std::uint64_t ordinal, std::vector<std::byte>* payload) const;
  // The ordinal of the values in the window; 0: there are none, or they are on their way.
  std::uint64_t window() const;
  // The newest ordinal asked for that the device had overwritten.
  std::uint64_t refused() const;
  // Asks for the values of `ordinal` (WindowRequest::ordinal), and for those of every new entry if
  // `every`. Only the slot's reader may call it.
  void Request(std::uint64_t ordinal, bool every);
  bool on_device() const { return (registration_.flags & layout::kSlotOnDevice) != 0; }

  // The oldest ordinal that may still be there if `newest` is the newest; 1 if nothing was
  // overwritten.
  std::uint64_t oldest(std::uint64_t newest) const;

  // Whether the writer claimed an entry and did not commit it. If the producer is dead, that
  // snapshot was lost at its death.
  bool HasUncommitted() const;

  // W4: everything up to `ordinal` is consumed; `lost` of all entries so far were overwritten
  // unread.
  // Requires: consumed() is not `ordinal` yet.
  void SetConsumed(std::uint64_t ordinal, std::uint64_t lost);

  // Must come before the SetConsumed() that covers the entry which caused it: a probe that sees the
  // credit also sees the verdict.
  void SetVerdict(const Verdict& verdict);
  // Waits a few milliseconds for a writer that is writing it.
  Verdict verdict() const;
  // With kSlotComparesOnDevice: the first replay that did not match, if any.
  std::optional<layout::SlotFailure> failure() const;

  // Stores those whose replay is not 0. Must come before the credit, as SetVerdict().
  void SetFirsts(const FirstNonfinites& firsts);
  FirstNonfinites firsts() const;

  // Takes effect from one of the next replays on. Only the slot's reader may call it.
  void SetControl(const layout::SlotControl& control);
  // What is set; kAsRegistered when nothing is.
  layout::SlotControl control() const;

  // Whether the block still belongs to this slot. If so, what was read before this call was the
  // slot's.
  bool valid() const;
  bool retired() const;

 private:
  SlotRingReader() = default;
  ReadStatus ReadOnce(std::uint64_t ordinal, Entry* out, PayloadId held) const;
  std::byte* block_ = nullptr;
  const layout::DirectoryEntry* directory_ = nullptr;
  std::uint64_t word_ = 0;
  layout::SlotRegistration registration_ = {};
};

// Store and load a SlotFirst, which belongs to the slot `order`.
void StoreFirst(const FirstNonfinite& first, std::uint64_t order, layout::SlotFirst* shared);
FirstNonfinite LoadFirst(const layout::SlotFirst& shared, std::uint64_t order);

// Whether the counts fit a tensor of the registration's dtype and shape. Others would be shown
// as facts about the tensor. `of_part`: they are of a part of it (layout::IsOfPadding).
bool IsPlausible(const layout::DeviceStats& stats, const layout::SlotFacts& registration,
                 bool of_part = false);

// Empty if a reader may use the registration, else what is wrong with it.
std::string CheckRegistration(const layout::SlotRegistration& registration,
                              std::uint64_t block_bytes);

}  // namespace cgdebug::ring
