// ring_fixture.h: a real segment in /dev/shm with one slot of int32 tensors, written and read in
// verbs.
#pragma once

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "libprobe/ring/payload_checksum.h"
#include "libprobe/ring/segment/segment_view.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/ring/slot_ring_writer.h"

namespace cgdebug::test {

// A registration as the probe library would write it.
inline layout::SlotRegistration MakeSlot(const std::string& name, std::uint64_t elements,
                                         std::uint32_t capacity,
                                         layout::Policy policy = layout::Policy::kOverwrite) {
  layout::SlotRegistration r = {};
  r.probe_id = 1;
  r.order = 1;
  r.dtype = static_cast<std::uint16_t>(layout::Dtype::kInt32);
  r.dims = 1;
  r.shape[0] = elements;
  r.payload_bytes = elements * 4;
  r.capacity = capacity;
  r.policy = static_cast<std::uint8_t>(policy);
  r.actions = layout::kActionRecord;
  r.record_every = 1;
  r.wait_deadline_ms = 200;
  const auto geometry = layout::ComputeGeometry(r.payload_bytes, capacity);
  r.payload_stride_bytes = geometry.payload_stride_bytes;
  r.headers_offset = geometry.headers_offset;
  r.payload_offset = geometry.payload_offset;
  std::memcpy(r.name, name.data(), name.size());
  return r;
}

struct Slot {
  ring::Block block;
  std::uint32_t index = 0;
};

inline Slot PublishSlot(ring::SegmentWriter& segment,
                        const layout::SlotRegistration& registration) {
  const auto geometry = layout::GeometryOf(registration);
  Slot slot;
  slot.block = segment.Allocate(geometry.block_bytes, geometry.payload_offset);
  std::memcpy(slot.block.data, &registration, sizeof(registration));
  slot.index = segment.Publish(slot.block);
  return slot;
}

// Writes consecutive numbers, so that a gap, a swap or a torn copy shows.
inline void WriteNumbers(ring::SlotRingWriter& writer, std::int32_t first) {
  if (!writer.Begin()) return;
  std::vector<std::int32_t> values(writer.payload_bytes() / 4);
  std::iota(values.begin(), values.end(), first);
  if (!values.empty()) std::memcpy(writer.payload(), values.data(), writer.payload_bytes());
  writer.Commit(first);
}

// Gives an entry that was written the checksum that a kernel of the direct lane writes.
inline void Seal(std::byte* block, std::uint64_t ordinal) {
  const auto& r = *reinterpret_cast<const layout::SlotRegistration*>(block);
  const std::uint64_t index = (ordinal - 1) % r.capacity;
  auto& header = reinterpret_cast<layout::EntryHeader*>(block + r.headers_offset)[index];
  header.flags |= layout::kEntryHasChecksum;
  header.checksum = ring::PayloadChecksum(block + r.payload_offset + index * r.payload_stride_bytes,
                                          r.payload_bytes) +
                    layout::HeaderSum(ordinal, header.replay, header.timestamp_ns, header.step,
                                      header.serial, header.flags, header.iteration);
}

inline std::vector<std::int32_t> Numbers(const ring::Entry& entry) {
  std::vector<std::int32_t> values(entry.payload.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), entry.payload.data(), entry.payload.size());
  return values;
}

}  // namespace cgdebug::test
