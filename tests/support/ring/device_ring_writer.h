// device_ring_writer.h: a slot whose values stay in device memory, written as the kernels write it.
// The ring in device memory is memory of this process.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "libprobe/ring/payload_checksum.h"
#include "libprobe/ring/serial.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/realtime.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::test {

// What makes a slot one on the device. `kept`: values that its ring there keeps.
inline void PutOnDevice(layout::SlotRegistration* r, std::uint32_t kept) {
  r->flags |= layout::kSlotOnDevice;
  r->lane = static_cast<std::uint8_t>(layout::Lane::kDirect);
  r->device_type = static_cast<std::uint8_t>(layout::DeviceType::kCuda);
  r->device_capacity = kept;
  r->device_bytes = (kept + 1) * layout::AlignUp(r->payload_bytes, 256);
  const layout::SlotGeometry geometry = layout::GeometryOf(*r);
  r->payload_stride_bytes = geometry.payload_stride_bytes;
  r->headers_offset = geometry.headers_offset;
  r->payload_offset = geometry.payload_offset;
}

class DeviceRingWriter {
 public:
  // Requires: `block` starts with the slot's registration, which PutOnDevice() changed.
  DeviceRingWriter(std::byte* block, layout::ProducerLine* producer)
      : block_(block), producer_(producer) {
    std::memcpy(&registration_, block, sizeof(registration_));
  }

  // One replay: sends what was asked for before it, then its own header.
  void Run(std::int32_t first) {
    const std::uint64_t ordinal = head().accepted + 1;
    std::vector<std::int32_t> values(registration_.payload_bytes / 4);
    std::iota(values.begin(), values.end(), first);
    values_.push_back(std::move(values));
    Serve(ordinal);
    const std::uint64_t index = (ordinal - 1) % registration_.capacity;
    auto& header =
        reinterpret_cast<layout::EntryHeader*>(block_ + registration_.headers_offset)[index];
    ring::StoreRelaxed(header.word, layout::EntryWord(ordinal, layout::EntryState::kFilling));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::uint32_t flags = layout::kEntryHasChecksum | layout::kEntryOnDevice;
    const std::uint64_t serial = ring::NextSerial();
    const std::int64_t now_ns = layout::RealtimeNs();
    ring::StoreRelaxed(header.replay, ordinal);
    ring::StoreRelaxed(header.iteration, 0u);
    ring::StoreRelaxed(header.timestamp_ns, now_ns);
    ring::StoreRelaxed(header.step, std::int64_t{-1});
    ring::StoreRelaxed(header.serial, serial);
    ring::StoreRelaxed(header.flags, flags);
    ring::StoreRelaxed(header.checksum, layout::HeaderSum(ordinal, ordinal, now_ns,
                                                          std::int64_t{-1}, serial, flags, 0));
    ring::StoreRelease(header.word, layout::EntryWord(ordinal, layout::EntryState::kReady));
    ring::StoreRelaxed(head().replay, ordinal);
    ring::StoreRelaxed(head().last_timestamp_ns, now_ns);
    ring::StoreRelease(head().accepted, ordinal);
    ring::StoreRelaxed(producer_->device_activity, producer_->device_activity + 1);
  }

  // What a leaf, or the process at its end, does about the daemon's request. `newest`: the newest
  // ordinal in the ring.
  void Serve(std::uint64_t newest) {
    const auto& wish =
        *reinterpret_cast<layout::WindowRequest*>(window_bytes() + sizeof(layout::DeviceWindow));
    if (ring::LoadAcquire(wish.order) != registration_.order) return;
    std::uint64_t wanted = ring::LoadAcquire(wish.ordinal);
    if ((wanted & layout::kWantsNewest) != 0) wanted = wanted == asked_ ? 0 : newest;
    asked_ = ring::LoadAcquire(wish.ordinal);
    if (ring::LoadRelaxed(wish.every) != 0) Send(newest);
    if (wanted == 0 || wanted > newest) return;
    if (newest - wanted >= registration_.device_capacity) {
      ring::StoreRelease(window().refused, wanted);
    } else {
      Send(wanted);
    }
  }

  void Send(std::uint64_t ordinal) {
    ring::StoreRelaxed(window().word, layout::EntryWord(ordinal, layout::EntryState::kFilling));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::byte* to = window_bytes() + layout::kWindowPayloadOffset;
    std::memcpy(to, values_.at(ordinal - 1).data(), registration_.payload_bytes);
    ring::StoreRelaxed(window().checksum, ring::PayloadChecksum(to, registration_.payload_bytes) +
                                              layout::WindowSum(ordinal, registration_.order));
    ring::StoreRelease(window().word, layout::EntryWord(ordinal, layout::EntryState::kReady));
  }

  layout::DeviceWindow& window() {
    return *reinterpret_cast<layout::DeviceWindow*>(window_bytes());
  }
  std::byte* window_bytes() { return block_ + layout::GeometryOf(registration_).window_offset; }

 private:
  layout::SlotHead& head() {
    return *reinterpret_cast<layout::SlotHead*>(block_ + layout::kSlotHeadOffset);
  }

  std::byte* block_;
  layout::ProducerLine* producer_;
  layout::SlotRegistration registration_ = {};
  std::uint64_t asked_ = 0;
  std::vector<std::vector<std::int32_t>> values_;  // by ordinal - 1
};

}  // namespace cgdebug::test
