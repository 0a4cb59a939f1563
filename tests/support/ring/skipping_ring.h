// skipping_ring.h: a slot that does not send an unchanged tensor again, written as the kernels of
// the direct lane write it.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "libprobe/ring/payload_checksum.h"
#include "libprobe/ring/serial.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/device_stats.h"
#include "proto/layout/realtime.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::test {

// What makes a slot skip unchanged tensors.
inline void SkipUnchanged(layout::SlotRegistration* registration) {
  registration->flags |= layout::kSlotSkipsUnchanged;
  registration->lane = static_cast<std::uint8_t>(layout::Lane::kDirect);
}

class SkippingWriter {
 public:
  // Requires: `block` starts with the slot's registration, which SkipUnchanged() changed.
  SkippingWriter(std::byte* block, layout::ProducerLine* producer)
      : block_(block), producer_(producer) {
    std::memcpy(&registration_, block, sizeof(registration_));
  }

  // One replay with these values.
  void Run(std::span<const std::byte> values) {
    const bool same = values.size() == last_.size() && !last_.empty() &&
                      std::memcmp(values.data(), last_.data(), last_.size()) == 0;
    Claim();
    if (same) {
      ring::StoreRelaxed(head().unchanged, head().unchanged + 1);
    } else {
      Send(values.data(), values.size());
    }
    last_.assign(values.begin(), values.end());
    Commit(0);
  }
  void Run(const std::vector<std::int32_t>& values) { Run(std::as_bytes(std::span(values))); }

  // One replay of which only the statistics are wanted. Their place may be the one of the last
  // values, so the next values are sent.
  void RunStats(const layout::DeviceStats& stats) {
    Claim();
    Send(&stats, sizeof(stats));
    last_.clear();
    Commit(layout::kEntryIsStats);
  }

  // Stores into the payload that the next replay would write, as one that is under way does.
  void Claim() {
    ordinal_ = head().accepted + 1;
    ring::StoreRelaxed(header().word, layout::EntryWord(ordinal_, layout::EntryState::kFilling));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void Send(const void* data, std::size_t bytes) {
    std::byte* payload = block_ + registration_.payload_offset +
                         layout::PlaceOfPayload(++payloads_, registration_.capacity) *
                             registration_.payload_stride_bytes;
    std::memcpy(payload, data, bytes);
    sum_ = ring::PayloadChecksum(payload, bytes);
  }

  layout::EntryHeader& header() {
    return reinterpret_cast<layout::EntryHeader*>(
        block_ + registration_.headers_offset)[(ordinal_ - 1) % registration_.capacity];
  }

 private:
  void Commit(std::uint32_t more_flags) {
    const std::uint32_t flags = layout::kEntryHasChecksum | more_flags;
    const std::uint64_t serial = ring::NextSerial();
    const std::int64_t now_ns = layout::RealtimeNs();
    ring::StoreRelaxed(header().replay, ordinal_);
    ring::StoreRelaxed(header().iteration, 0u);
    ring::StoreRelaxed(header().timestamp_ns, now_ns);
    ring::StoreRelaxed(header().step, std::int64_t{-1});
    ring::StoreRelaxed(header().serial, serial);
    ring::StoreRelaxed(header().flags, flags);
    ring::StoreRelaxed(header().reference, payloads_);
    ring::StoreRelaxed(header().checksum,
                       sum_ + layout::HeaderSum(ordinal_, ordinal_, now_ns, std::int64_t{-1},
                                                serial, flags, 0, payloads_));
    ring::StoreRelease(header().word, layout::EntryWord(ordinal_, layout::EntryState::kReady));
    ring::StoreRelaxed(head().replay, ordinal_);
    ring::StoreRelaxed(head().last_timestamp_ns, now_ns);
    ring::StoreRelease(head().accepted, ordinal_);
    ring::StoreRelaxed(producer_->device_activity, producer_->device_activity + 1);
  }
  layout::SlotHead& head() {
    return *reinterpret_cast<layout::SlotHead*>(block_ + layout::kSlotHeadOffset);
  }

  std::byte* block_;
  layout::ProducerLine* producer_;
  layout::SlotRegistration registration_ = {};
  std::vector<std::byte> last_;
  std::uint64_t ordinal_ = 0;
  std::uint64_t payloads_ = 0;
  std::uint64_t sum_ = 0;  // of the last payload
};

}  // namespace cgdebug::test
