// body_ring.h: a slot in the body of a conditional node, written as the kernels of the direct lane
// write it: the replay is the root graph's, and each run of the body in it is an iteration.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "libprobe/ring/payload_checksum.h"
#include "libprobe/ring/serial.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/realtime.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::test {

// What makes a slot one of a body.
inline void PutIntoBody(layout::SlotRegistration* registration) {
  registration->flags |= layout::kSlotInBody;
  registration->lane = static_cast<std::uint8_t>(layout::Lane::kDirect);
}

class BodyWriter {
 public:
  // Requires: `block` starts with the slot's registration, which PutIntoBody() changed.
  BodyWriter(std::byte* block, layout::ProducerLine* producer)
      : block_(block), producer_(producer) {
    std::memcpy(&registration_, block, sizeof(registration_));
  }

  // A replay of the root graph begins.
  void BeginReplay() { ring::StoreRelaxed(head().graph_replays, ++replay_); }

  // The body runs, in the replay that began last.
  void Run(std::span<const std::byte> values) {
    iteration_ = ran_in_ == replay_ ? iteration_ + 1 : 0;
    if (ran_in_ != replay_) ring::StoreRelaxed(head().taken, head().taken + 1);
    ran_in_ = replay_;
    const std::uint64_t ordinal = head().accepted + 1;
    const std::uint64_t index = (ordinal - 1) % registration_.capacity;
    auto& header =
        reinterpret_cast<layout::EntryHeader*>(block_ + registration_.headers_offset)[index];
    std::byte* payload =
        block_ + registration_.payload_offset + index * registration_.payload_stride_bytes;
    ring::StoreRelaxed(header.word, layout::EntryWord(ordinal, layout::EntryState::kFilling));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::memcpy(payload, values.data(), registration_.payload_bytes);
    const std::uint64_t serial = ring::NextSerial();
    const std::int64_t now_ns = layout::RealtimeNs() - fake_lag_ns;
    ring::StoreRelaxed(header.replay, replay_);
    ring::StoreRelaxed(header.iteration, iteration_);
    ring::StoreRelaxed(header.timestamp_ns, now_ns);
    ring::StoreRelaxed(header.step, std::int64_t{-1});
    ring::StoreRelaxed(header.serial, serial);
    ring::StoreRelaxed(header.flags, layout::kEntryHasChecksum);
    ring::StoreRelaxed(header.checksum,
                       ring::PayloadChecksum(payload, registration_.payload_bytes) +
                           layout::HeaderSum(ordinal, replay_, now_ns, std::int64_t{-1}, serial,
                                             layout::kEntryHasChecksum, iteration_));
    ring::StoreRelease(header.word, layout::EntryWord(ordinal, layout::EntryState::kReady));
    ring::StoreRelaxed(head().replay, replay_);
    ring::StoreRelaxed(head().last_timestamp_ns, now_ns);
    ring::StoreRelease(head().accepted, ordinal);
    ring::StoreRelaxed(producer_->device_activity, producer_->device_activity + 1);
  }

  // How far the fake clock of the GPU, which stamps the entries, is behind the host's.
  std::int64_t fake_lag_ns = 0;

  std::uint64_t replay() const { return replay_; }
  std::uint32_t iteration() const { return iteration_; }

 private:
  layout::SlotHead& head() {
    return *reinterpret_cast<layout::SlotHead*>(block_ + layout::kSlotHeadOffset);
  }

  std::byte* block_;
  layout::ProducerLine* producer_;
  layout::SlotRegistration registration_ = {};
  std::uint64_t replay_ = 0;
  std::uint64_t ran_in_ = 0;
  std::uint32_t iteration_ = 0;
};

}  // namespace cgdebug::test
