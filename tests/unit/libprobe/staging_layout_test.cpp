#include "libprobe/capture/graph/staging_layout.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace cgdebug::capture {
namespace {

constexpr std::uint64_t kElements = 1000;  // float32: 4,000 bytes, no multiple of 256

layout::SlotRegistration Registration(std::uint32_t flags) {
  layout::SlotRegistration r = {};
  r.flags = flags;
  r.dtype = static_cast<std::uint8_t>(layout::Dtype::kFloat32);
  r.dims = 1;
  r.shape[0] = kElements;
  const bool holds_stats = (flags & layout::kSlotHoldsStats) != 0;
  r.payload_bytes = holds_stats ? sizeof(layout::DeviceStats) : 4 * kElements;
  if ((flags & layout::kSlotOnDevice) != 0) r.device_bytes = 3 * 4096;
  return r;
}

TEST(StagingLayout, NothingLiesWhereAnotherThingLies) {
  for (const std::uint32_t ring : {std::uint32_t{0}, layout::kSlotOnDevice}) {
    for (const std::uint32_t compares : {std::uint32_t{0}, layout::kSlotComparesOnDevice}) {
      for (const std::uint32_t reference : {std::uint32_t{0}, layout::kSlotIsReference}) {
        const auto r = Registration(ring | compares | reference);
        const StagingLayout at = StagingLayout::Of(r, ring == 0 ? 0 : 7);
        std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces = {
            {0, ring == 0 ? r.payload_bytes : r.device_bytes}};
        if (ring != 0) pieces.emplace_back(at.parts, 7 * sizeof(layout::DeviceStats));
        if (compares != 0) {
          pieces.emplace_back(at.expected, r.payload_bytes);
          pieces.emplace_back(at.compare, at.compare_bytes);
        }
        if (reference != 0) pieces.emplace_back(at.copy, 4 * kElements);
        std::uint64_t end = 0;
        for (const auto& [offset, bytes] : pieces) {
          EXPECT_EQ(offset % 256, 0u);
          EXPECT_GE(offset, end);
          end = offset + bytes;
        }
        EXPECT_LE(end, at.bytes);
        EXPECT_LT(at.bytes - end, 256u);
      }
    }
  }
}

TEST(StagingLayout, TheStateOfAComparisonHasAFindingForEachBlock) {
  const StagingLayout at = StagingLayout::Of(Registration(layout::kSlotComparesOnDevice), 0);
  EXPECT_EQ(at.compare_bytes, offsetof(CompareState, findings) + sizeof(CompareFinding));
  auto large = Registration(layout::kSlotComparesOnDevice);
  large.payload_bytes = std::uint64_t{1} << 30;
  EXPECT_EQ(StagingLayout::Of(large, 0).compare_bytes, sizeof(CompareState));
}

TEST(StagingLayout, StatisticsAloneTakeNothingUnlessOthersAreComparedWithThem) {
  EXPECT_EQ(StagingLayout::Of(Registration(layout::kSlotHoldsStats), 0).bytes, 0u);
  const StagingLayout at =
      StagingLayout::Of(Registration(layout::kSlotHoldsStats | layout::kSlotIsReference), 0);
  EXPECT_EQ(at.copy, 0u);
  EXPECT_EQ(at.bytes, 4096u);
}

}  // namespace
}  // namespace cgdebug::capture
