#include "daemon/ingest/slot/entry_reader.h"

#include <algorithm>
#include <new>

#include "daemon/core/base/terminate.h"
#include "daemon/ingest/sigbus_guard.h"

namespace cgdebug::ingest {

using ring::ReadStatus;

namespace {

// How much of a slot is read again when a daemon takes over. More is read when somebody asks for
// it.
constexpr std::uint64_t kAgainBytes = 1u << 20;
constexpr std::uint64_t kAgainAtLeast = 2;

}  // namespace

void EntryReader::Start() {
  consumed_before_ = progress_->consumed;
  if (consumed_before_ == 0) return;
  // At most a ring full, whatever the producer does to its head meanwhile.
  const std::uint64_t capacity = slot_->registration.capacity;
  const std::uint64_t affordable = kAgainBytes / std::max<std::uint64_t>(payload_bytes(), 1);
  const std::uint64_t wanted = NeedsAllAgain() || slot_->IsOnDevice()
                                   ? capacity
                                   : std::min(capacity, std::max(affordable, kAgainAtLeast));
  again_ = consumed_before_ > wanted ? consumed_before_ - wanted + 1 : 1;
}

// A recording that continues an earlier daemon's may lack some of these.
bool EntryReader::NeedsAllAgain() const { return slot_->Has(layout::kActionRecordToDisk); }

void EntryReader::Prepare() {
  const SigbusGuard guard;
  prepared_.no_memory = prepared_.seen_before = false;
  while (again_ != 0 && !prepared_.seen_before && !SigbusGuard::Hit()) PrepareAgain();
  if (!prepared_.seen_before && !SigbusGuard::Hit()) PrepareNext();
  prepared_.cut_off = SigbusGuard::Hit();
}

// Reads large ones again only while there is nothing new: their writer may be waiting.
void EntryReader::PrepareAgain() {
  const bool is_large = payload_bytes() > kAgainBytes / kAgainAtLeast && !slot_->IsOnDevice();
  if (is_large && !NeedsAllAgain() && ring_->accepted() > progress_->consumed) {
    again_ = 0;
    return;
  }
  const std::uint64_t ordinal = again_;
  again_ = ordinal < consumed_before_ ? ordinal + 1 : 0;
  try {
    const MayRunOutOfMemory large;
    if (shown_->Read(*ring_, ordinal, &prepared_.entry) != ReadStatus::kOk) return;
    // The earlier daemon's note that nobody saw these values ended with it.
    if (prepared_.is_header_alone()) return destination_->registry->NoteUnseen(slot_);
    const std::uint64_t bytes = progress_->bytes;  // that snapshot is in there already
    MakeSnapshot();
    progress_->bytes = bytes;
    prepared_.seen_before = true;
  } catch (const std::bad_alloc&) {  // an earlier daemon delivered it
    shown_->DropMade();
  }
}

void EntryReader::PrepareNext() {
  try {
    const MayRunOutOfMemory large;
    // Kept until the snapshot is made of it.
    const pipeline::PayloadPtr held =
        last_payload_.number == 0 ? nullptr : shown_->previous_payload();
    prepared_.status = Read(held == nullptr ? ring::PayloadId{} : last_payload_);
    if (prepared_.entry.is_held) {  // the buffer is given back
      destination_->payloads->Share(std::exchange(prepared_.entry.payload, {}));
    }
    if (prepared_.status != ReadStatus::kOk) return;
    if (!prepared_.is_header_alone()) MakeSnapshot();
    if (!shown_->are_rows()) {
      prepared_.comparison = comparison_->Compare(prepared_.entry, shown_->made(0));
    }
  } catch (const std::bad_alloc&) {  // most likely a large tensor; small ones go on
    prepared_.status = ReadStatus::kDamaged;
    prepared_.no_memory = true;
    progress_->Lose(prepared_.entry.ordinal);
    prepared_.entry = {.ordinal = prepared_.entry.ordinal,
                       .replay = prepared_.entry.replay,
                       .flags = prepared_.entry.flags,
                       .payload = {}};
    shown_->ForgetMade();
  }
}

ReadStatus EntryReader::Read(ring::PayloadId held) {
  if (!ring_->valid()) return ReadStatus::kGone;
  const std::uint64_t accepted = ring_->accepted();
  if (accepted <= progress_->consumed) return ReadStatus::kNone;
  std::uint64_t next = std::max(progress_->consumed + 1, ring_->oldest(accepted));
  // A slot that sends only statistics would take a buffer that others need, and drop it.
  const bool had_values = !prepared_.Has(layout::kEntryIsStats | layout::kEntryOnDevice);
  if (had_values && prepared_.entry.payload.empty()) {
    prepared_.entry.payload = destination_->payloads->Take(payload_bytes());
  }
  ReadStatus status = shown_->Read(*ring_, next, &prepared_.entry, held);
  if (status == ReadStatus::kOverwritten) {
    // The writer is faster than this reader: skip half a ring, or the next entry is lost as well.
    const std::uint64_t newest = ring_->accepted();
    const std::uint64_t ahead =
        newest - std::min<std::uint64_t>(newest, slot_->registration.capacity / 2);
    next = std::max(ahead, next + 1);
    status = shown_->Read(*ring_, next, &prepared_.entry, held);
  }
  // If the block was reassigned meanwhile, this head may belong to its new owner.
  if (status != ReadStatus::kGone) progress_->Lose(next);
  return status;
}

void EntryReader::MakeSnapshot() {
  ring::Entry& entry = prepared_.entry;
  entry.timestamp_ns = clock_->Next(entry.timestamp_ns);
  progress_->bytes +=
      prepared_.Has(layout::kEntryIsStats) ? sizeof(entry.stats) : entry.payload.size();
  shown_->Make(&entry,
               prepared_.Has(layout::kEntryTriggered) ? ring_->control() : layout::SlotControl{});
  if (shown_->are_rows()) return;
  last_payload_ = shown_->made(0).payload == nullptr ? ring::PayloadId{} : entry.payload_id;
}

}  // namespace cgdebug::ingest
