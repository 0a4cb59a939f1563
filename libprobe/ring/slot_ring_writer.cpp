#include "libprobe/ring/slot_ring_writer.h"

#include <cstring>

#include "libprobe/ring/control.h"
#include "libprobe/ring/credit.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/realtime.h"

namespace cgdebug::ring {

using layout::EntryState;
using layout::EntryWord;
using layout::Outcome;

namespace {

bool Expired(const layout::SlotControl& control) noexcept {
  return control.expires_ns != 0 && layout::RealtimeNs() >= control.expires_ns;
}

}  // namespace

SlotRingWriter::SlotRingWriter(std::byte* block, layout::ProducerLine* producer,
                               ReaderGate* gate) noexcept
    : producer_(producer), gate_(gate) {
  layout::SlotRegistration registration;
  std::memcpy(&registration, block, sizeof(registration));
  head_ = reinterpret_cast<layout::SlotHead*>(block + layout::kSlotHeadOffset);
  credit_ = reinterpret_cast<const layout::SlotCredit*>(block + layout::kSlotCreditOffset);
  headers_ = reinterpret_cast<layout::EntryHeader*>(block + registration.headers_offset);
  payloads_ = block + registration.payload_offset;
  payload_bytes_ = registration.payload_bytes;
  payload_stride_bytes_ = registration.payload_stride_bytes;
  capacity_ = registration.capacity;
  order_ = registration.order;
  periods_ = layout::PeriodsOf(registration);
  holds_stats_ = (registration.flags & layout::kSlotHoldsStats) != 0;
  waits_ = registration.policy == static_cast<std::uint8_t>(layout::Policy::kWait);
  deadline_ = std::chrono::milliseconds(registration.wait_deadline_ms);
}

// This writer moves what it is given. If only statistics are wanted of values, it sends these with
// a flag that says so.
Outcome SlotRingWriter::DecideOutcome(std::uint64_t replay) noexcept {
  LoadControl(*credit_, order_, &control_);
  layout::SlotControl control = control_;
  if (Expired(control)) control = layout::Ended(control);
  const Outcome outcome = layout::Decide(periods_, control, replay);
  flags_ = 0;
  if (outcome == Outcome::kSkip) {
    if (layout::Decide(periods_, layout::Ended(control), replay) != Outcome::kSkip) {
      StoreRelaxed(head_->suppressed, head_->suppressed + 1);
    }
    return outcome;
  }
  if (holds_stats_) {
    flags_ |= layout::kEntryIsStats;
  } else if (outcome == Outcome::kStats) {
    flags_ |= layout::kEntryDropValues;
  } else if (outcome == Outcome::kTriggered) {
    flags_ |= layout::kEntryTriggered;
  }
  if (layout::Holds(control, replay)) flags_ |= layout::kEntryForced;
  return outcome;
}

void SlotRingWriter::MakeRoom(std::uint64_t ordinal) noexcept {
  const std::uint64_t needed = ordinal - capacity_;  // R4: this entry must have been consumed
  const auto [consumed, waited] = gate_->WaitFor(*credit_, order_, needed, deadline_, &gave_up_);
  if (waited.count() != 0) {
    StoreRelaxed(head_->waits, head_->waits + 1);
    StoreRelaxed(head_->wait_ns, head_->wait_ns + static_cast<std::uint64_t>(waited.count()));
  }
  if (!consumed) StoreRelaxed(head_->overwrote_unread, head_->overwrote_unread + 1);
}

bool SlotRingWriter::Begin(std::uint64_t serial) noexcept {
  replay_ = head_->replay + 1;
  return Claim(serial);
}

bool SlotRingWriter::BeginInCall(std::uint64_t serial, std::uint64_t call) noexcept {
  iteration_ = call == replay_ ? iteration_ + 1 : 0;
  replay_ = call;
  return Claim(serial);
}

bool SlotRingWriter::Claim(std::uint64_t serial) noexcept {
  serial_ = serial;
  StoreRelaxed(head_->replay, replay_);
  kept_ = 0;
  if (DecideOutcome(replay_) == Outcome::kSkip) return false;
  ordinal_ = head_->accepted + 1;
  const bool waits = waits_ || layout::IsLossless(periods_, control_);
  if (waits && ordinal_ > capacity_) MakeRoom(ordinal_);
  const std::uint64_t index = (ordinal_ - 1) % capacity_;
  claimed_ = &headers_[index];
  payload_ = payloads_ + index * payload_stride_bytes_;
  // W2, pairs with R2: a reader that sees a byte written after this also sees the changed word. A
  // full fence: memcpy stores large payloads past the caches, and x86 does not order such stores
  // after an earlier plain one.
  StoreRelaxed(claimed_->word, EntryWord(ordinal_, EntryState::kFilling));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

std::int64_t SlotRingWriter::step() const noexcept { return LoadRelaxed(producer_->step); }

void SlotRingWriter::Commit(std::int64_t timestamp_ns) noexcept { Commit(timestamp_ns, step()); }

void SlotRingWriter::Commit(std::int64_t timestamp_ns, std::int64_t step) noexcept {
  StoreRelaxed(claimed_->replay, replay_);
  StoreRelaxed(claimed_->timestamp_ns, timestamp_ns);
  StoreRelaxed(claimed_->step, step);
  StoreRelaxed(claimed_->serial, serial_);
  StoreRelaxed(claimed_->flags, flags_);
  StoreRelaxed(claimed_->reference, reference_);
  StoreRelaxed(claimed_->iteration, iteration_);  // no writer on the CPU runs in a graph's body
  StoreRelease(claimed_->word, EntryWord(ordinal_, EntryState::kReady));  // W1, pairs with R1
  StoreRelaxed(head_->last_timestamp_ns, timestamp_ns);
  StoreRelease(head_->accepted, ordinal_);  // W3, pairs with R3
  Add(producer_->activity, std::uint64_t{1});
  claimed_ = nullptr;
  kept_ = ordinal_;
}

}  // namespace cgdebug::ring
