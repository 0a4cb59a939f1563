// slot_ring_reader.h: the reader's end of one slot's ring, in the daemon or in the job itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/layout/device_stats.h"
#include "proto/layout/segment_layout.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::ring {

// One snapshot, copied out and known to be whole.
struct Entry {
  std::uint64_t ordinal = 0;   // of accepted entries, from 1
  std::uint64_t sequence = 0;  // replay, from 1
  std::uint64_t serial = 0;    // of the replay, unique in the process but for its other slots
  std::int64_t timestamp_ns = 0;
  std::int64_t step = -1;
  std::uint32_t flags = 0;         // layout::kEntry...
  std::vector<std::byte> payload;  // registration().payload_bytes; empty with kEntryIsStats
  layout::DeviceStats stats = {};  // with kEntryIsStats
};

// What the daemon tells a probe about its comparison.
struct Verdict {
  layout::VerdictState state = layout::VerdictState::kNone;
  std::uint64_t compared = 0;
  std::uint64_t mismatched = 0;
  std::uint64_t lost = 0;
  std::uint64_t first_failed_sequence = 0;
  std::uint64_t covered_sequence = 0;  // every replay up to this one is in the counts
  std::string text;                    // cut to kVerdictTextBytes
  bool torn = false;  // its writer died in the middle of it: nothing else in here is known
};

// The first replay of a slot in which a daemon saw NaN, or Inf.
struct FirstNonfinite {
  std::uint64_t sequence = 0;  // 0: none yet
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
  kDamaged,      // committed, and its bytes are not those that the writer summed up
};

// Thread:   one at a time; the consuming calls only in the process that holds the reader's lock.
// Lifetime: points into the mapping of the SegmentView or SegmentWriter it came from.
class SlotRingReader {
 public:
  // Validates the registration at `block`, which has `block_bytes`. `word` is the directory word
  // that was read before the directory said where the block lies.
  // Fails: nullopt, with the reason in *reason, when anything in it is not what a producer writes;
  //        with an empty reason when the slot changed hands since `word` was read.
  static std::optional<SlotRingReader> Open(std::byte* block, std::uint64_t block_bytes,
                                            const layout::DirectoryEntry* directory,
                                            std::uint64_t word, std::string* reason);

  // The validated copy; nothing in shared memory can change it any more.
  const layout::SlotRegistration& registration() const { return registration_; }
  std::uint64_t generation() const { return layout::DirectoryGeneration(word_); }

  std::uint64_t accepted() const;  // ordinal of the newest committed entry
  std::uint64_t sequence() const;  // replays seen
  std::uint64_t consumed() const;
  layout::SlotHead head() const;  // counters, each read once; none is older than `accepted`
  // Consumed and lost; a loss that is in `consumed` is in `lost`.
  layout::SlotCredit credit() const;

  // Copies entry `ordinal`. `out->payload` is reused. What is damaged was read twice.
  ReadStatus Read(std::uint64_t ordinal, Entry* out) const;

  // The oldest ordinal that may still be there when `newest` is the newest; 1 when nothing was
  // overwritten yet.
  std::uint64_t oldest(std::uint64_t newest) const;

  // Whether the writer claimed an entry after the newest committed one: of a dead producer, a
  // snapshot that was lost at its death.
  bool HasUncommitted() const;

  // W4: everything up to `ordinal` is consumed, `lost` of all entries so far were overwritten
  // unread.
  void SetConsumed(std::uint64_t ordinal, std::uint64_t lost);

  // Written before SetConsumed() covers the entry that caused it: a probe that sees the credit sees
  // the verdict.
  void SetVerdict(const Verdict& verdict);
  // Waits some milliseconds for a writer that is in the middle of it.
  Verdict verdict() const;

  // Stores those that have a sequence. As SetVerdict(), before the credit.
  void SetFirsts(const FirstNonfinites& firsts);
  FirstNonfinites firsts() const;

  // In force from one of the next replays on. Only the slot's reader may call it.
  void SetControl(const layout::SlotControl& control);
  // What is set; kAsRegistered when nothing is.
  layout::SlotControl control() const;

  // Whether the block still belongs to this slot, and did when anything before this call was read.
  bool valid() const;
  bool retired() const;

 private:
  SlotRingReader() = default;
  ReadStatus ReadOnce(std::uint64_t ordinal, Entry* out) const;
  bool CopyVerdict(layout::SlotVerdict* copy) const;  // false: it was being written
  std::byte* block_ = nullptr;
  const layout::DirectoryEntry* directory_ = nullptr;
  std::uint64_t word_ = 0;
  layout::SlotRegistration registration_ = {};
};

// Empty when a reader may use the registration: otherwise what is wrong with it.
std::string CheckRegistration(const layout::SlotRegistration& registration,
                              std::uint64_t block_bytes);

}  // namespace cgdebug::ring
