// staging_layout.h: where things lie in the device memory that the direct lane takes for a slot
// (Buffers::staging). From its beginning:
//
//   values     the staged tensor, or the ring (device_ring.h)
//   parts      of statistics, which the kernel that stages into a ring leaves for the leaf
//   expected   the tensor that the GPU compares with; behind it, the state of the comparison
//   copy       of the tensor, whole until the graph's next replay, for probes that are compared
//              with this one. The staged tensor is not: replays that nobody wants leave it out
//
// A slot that wants only statistics has the last at most; its parts are ProbeSlot::TakeParts().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "libprobe/capture/kernels/direct_kernels.h"
#include "proto/layout/device_stats.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::capture {

// Of the tensor that the slot sees, also where only its statistics leave the device.
inline std::uint64_t ElementCount(const layout::SlotRegistration& registration) {
  std::uint64_t count = 1;
  for (int i = 0; i < registration.dims; ++i) count *= registration.shape[i];
  return count;
}
inline std::uint64_t TensorBytes(const layout::SlotRegistration& registration) {
  return ElementCount(registration) *
         layout::DtypeBytes(static_cast<layout::Dtype>(registration.dtype));
}

// How many blocks of a grid share `items`.
inline int BlocksFor(std::uint64_t items, std::uint64_t items_per_block, std::uint64_t most) {
  const std::uint64_t wanted = (items + items_per_block - 1) / items_per_block;
  return static_cast<int>(std::clamp<std::uint64_t>(wanted, 1, most));
}
inline int CompareBlocks(std::uint64_t bytes) {
  return BlocksFor(bytes, std::uint64_t{16} * kCompareThreads, kMostCompareBlocks);
}

// The offsets are multiples of 256. What a slot does not have takes nothing.
struct StagingLayout {
  std::uint64_t parts = 0;
  std::uint64_t expected = 0;
  std::uint64_t compare = 0;  // a CompareState with as many findings as the comparison has blocks
  std::uint64_t compare_bytes = 0;
  std::uint64_t copy = 0;
  std::uint64_t bytes = 0;  // of all

  // `part_count`: of statistics that the kernel which stages the values computes.
  static StagingLayout Of(const layout::SlotRegistration& registration, std::uint64_t part_count) {
    StagingLayout at;
    const auto take = [&at](std::uint64_t bytes) {
      const std::uint64_t offset = at.bytes;
      at.bytes = layout::AlignUp(offset + bytes, 256);
      return offset;
    };
    const auto has = [&](std::uint32_t flag) { return (registration.flags & flag) != 0; };
    if (!has(layout::kSlotHoldsStats)) {
      take(has(layout::kSlotOnDevice) ? registration.device_bytes : registration.payload_bytes);
      at.parts = take(part_count * sizeof(layout::DeviceStats));
      if (has(layout::kSlotComparesOnDevice)) {
        at.expected = take(registration.payload_bytes);
        at.compare_bytes = offsetof(CompareState, findings) +
                           static_cast<std::uint64_t>(CompareBlocks(registration.payload_bytes)) *
                               sizeof(CompareFinding);
        at.compare = take(at.compare_bytes);
      }
    }
    if (has(layout::kSlotIsReference)) at.copy = take(TensorBytes(registration));
    return at;
  }
};

}  // namespace cgdebug::capture
