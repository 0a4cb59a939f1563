#include "libprobe/ring/slot_ring_writer.h"

#include <cstring>

#include "libprobe/ring/credit.h"
#include "libprobe/ring/shared_copy.h"

namespace cgdebug::ring {

using layout::EntryState;
using layout::EntryWord;

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
  every_[0] = registration.print_every;
  every_[1] = registration.record_every;
  every_[2] = registration.compare_every;
  waits_ = registration.policy == static_cast<std::uint8_t>(layout::Policy::kWait);
  deadline_ = std::chrono::milliseconds(registration.wait_deadline_ms);
}

bool SlotRingWriter::Wanted(std::uint64_t sequence) const noexcept {
  for (const std::uint32_t every : every_) {
    if (layout::Wants(every, sequence)) return true;
  }
  return false;
}

void SlotRingWriter::MakeRoom(std::uint64_t ordinal) noexcept {
  const std::uint64_t needed = ordinal - capacity_;  // R4: this entry must have been consumed
  const auto [consumed, waited] = gate_->WaitFor(*credit_, order_, needed, deadline_);
  if (waited.count() != 0) {
    StoreRelaxed(head_->waits, head_->waits + 1);
    StoreRelaxed(head_->wait_ns, head_->wait_ns + static_cast<std::uint64_t>(waited.count()));
  }
  if (!consumed) StoreRelaxed(head_->overwrote_unread, head_->overwrote_unread + 1);
}

bool SlotRingWriter::Begin() noexcept {
  sequence_ = head_->sequence + 1;
  StoreRelaxed(head_->sequence, sequence_);
  if (!Wanted(sequence_)) return false;
  ordinal_ = head_->accepted + 1;
  if (waits_ && ordinal_ > capacity_) MakeRoom(ordinal_);
  const std::uint64_t index = (ordinal_ - 1) % capacity_;
  claimed_ = &headers_[index];
  payload_ = payloads_ + index * payload_stride_bytes_;
  // W2, pairs with R2: whoever sees a byte written from here on also sees the word change.
  StoreRelaxed(claimed_->word, EntryWord(ordinal_, EntryState::kFilling));
  std::atomic_thread_fence(std::memory_order_release);
  return true;
}

std::int64_t SlotRingWriter::step() const noexcept { return LoadRelaxed(producer_->step); }

void SlotRingWriter::Commit(std::int64_t timestamp_ns) noexcept { Commit(timestamp_ns, step()); }

void SlotRingWriter::Commit(std::int64_t timestamp_ns, std::int64_t step) noexcept {
  StoreRelaxed(claimed_->sequence, sequence_);
  StoreRelaxed(claimed_->timestamp_ns, timestamp_ns);
  StoreRelaxed(claimed_->step, step);
  StoreRelaxed(claimed_->flags, std::uint32_t{0});
  StoreRelease(claimed_->word, EntryWord(ordinal_, EntryState::kReady));  // W1, pairs with R1
  StoreRelaxed(head_->last_timestamp_ns, timestamp_ns);
  StoreRelease(head_->accepted, ordinal_);  // W3, pairs with R3
  Add(producer_->activity, std::uint64_t{1});
  claimed_ = nullptr;
}

}  // namespace cgdebug::ring
