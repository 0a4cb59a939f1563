// A producer's segment: how blocks are allocated, and the extents they lie in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "libprobe/ring/segment/free_ranges.h"
#include "tests/support/child_process.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::ring {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPage = layout::kPageBytes;

class Blocks : public ::testing::Test {
 protected:
  ~Blocks() override { segment_.Close(/*unlink=*/true); }
  SegmentWriter segment_{Identity{}};
};

TEST(FreeRanges, GivesWhatItTookAndMergesNeighboursOfOneAreaOnly) {
  FreeRanges free;
  EXPECT_FALSE(free.Take(1));
  EXPECT_TRUE(free.Give({1, 0}, 100));
  EXPECT_TRUE(free.Give({2, 100}, 100));
  EXPECT_FALSE(free.Take(101)) << "two areas are not neighbours";
  EXPECT_EQ(free.Take(60), (FreeRanges::Place{1, 0}));
  EXPECT_EQ(free.Take(60), (FreeRanges::Place{2, 100}));
  EXPECT_EQ(free.Take(40), (FreeRanges::Place{1, 60}));
  EXPECT_TRUE(free.Give({1, 60}, 40));
  EXPECT_TRUE(free.Give({1, 0}, 60));
  EXPECT_EQ(free.Take(100), (FreeRanges::Place{1, 0}));
  free.Forget(2);
  EXPECT_FALSE(free.Take(1));
}

TEST_F(Blocks, AreRoundedToPagesAndFollowEachOther) {
  const Block a = segment_.Allocate(1);
  const Block b = segment_.Allocate(kPage + 1);
  const Block c = segment_.Allocate(0);
  EXPECT_EQ(a.extent, 1u);
  EXPECT_EQ(a.offset, layout::kExtentDataOffset);
  EXPECT_EQ(a.bytes, kPage);
  EXPECT_EQ(b.offset, a.offset + kPage);
  EXPECT_EQ(b.bytes, 2 * kPage);
  EXPECT_EQ(c.offset, b.offset + b.bytes);
  EXPECT_EQ(c.bytes, kPage);
}

TEST_F(Blocks, TakeTheFirstGapThatFits) {
  const Block a = segment_.Allocate(2 * kPage);
  const Block wall1 = segment_.Allocate(kPage);
  const Block b = segment_.Allocate(4 * kPage);
  const Block wall2 = segment_.Allocate(kPage);
  segment_.Free(b);
  segment_.Free(a);
  EXPECT_EQ(segment_.Allocate(3 * kPage).offset, b.offset) << "too large for the first gap";
  EXPECT_EQ(segment_.Allocate(kPage).offset, a.offset);
  EXPECT_EQ(segment_.Allocate(kPage).offset, a.offset + kPage);
  EXPECT_EQ(segment_.Allocate(kPage).offset, b.offset + 3 * kPage);
  EXPECT_GT(segment_.Allocate(kPage).offset, wall2.offset);
  (void)wall1;
}

TEST_F(Blocks, NeighboursThatAreFreeBecomeOneGap) {
  for (const std::vector<int>& order :
       {std::vector{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}}) {
    std::vector<Block> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(segment_.Allocate(kPage));
    const Block wall = segment_.Allocate(kPage);
    for (const int i : order) segment_.Free(blocks[static_cast<std::size_t>(i)]);
    const Block whole = segment_.Allocate(3 * kPage);
    EXPECT_EQ(whole.offset, blocks[0].offset);
    segment_.Free(whole);
    segment_.Free(wall);
  }
}

// The end of a free range in one extent is not a neighbour of the range with that offset in the
// next.
TEST_F(Blocks, FreeBlocksOfTwoExtentsNeverBecomeOneGap) {
  std::vector<Block> pages;
  do {
    pages.push_back(segment_.Allocate(kPage));
  } while (pages.back().extent == 1 || pages.back().offset < 3 * kPage);
  ASSERT_EQ(pages[1].extent, 1u);
  ASSERT_EQ(pages[1].offset + pages[1].bytes, pages.back().offset);
  segment_.Free(pages[1]);
  segment_.Free(pages.back());
  EXPECT_EQ(segment_.Allocate(2 * kPage).extent, 2u);
}

TEST_F(Blocks, GrowByExtentsThatGetLargerAndAreUsedAgain) {
  const std::uint64_t mib = 1 << 20;
  std::vector<Block> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(segment_.Allocate(3 * mib));
  EXPECT_EQ(blocks[0].extent, 1u);
  EXPECT_EQ(blocks[1].extent, 2u);
  EXPECT_EQ(blocks[2].extent, 2u) << "the second extent is twice the first";
  EXPECT_EQ(segment_.producer()->extent_count, blocks.back().extent);
  const std::uint64_t before = segment_.shm_bytes();
  for (const Block& block : blocks) segment_.Free(block);
  for (int i = 0; i < 10; ++i) segment_.Allocate(3 * mib);
  EXPECT_EQ(segment_.shm_bytes(), before);
}

TEST_F(Blocks, LargerThanAnyExtentGetOneOfTheirOwn) {
  const Block block = segment_.Allocate(100 << 20);
  EXPECT_EQ(block.offset, layout::kExtentDataOffset);
  block.data[0] = std::byte{1};
  block.data[block.bytes - 1] = std::byte{2};
  EXPECT_GT(segment_.shm_bytes(), 100u << 20);
}

std::size_t OpenDescriptors() {
  const fs::directory_iterator fds("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(fds), end(fds)));
}

TEST_F(Blocks, AreManyWithoutADescriptorEach) {
  const std::size_t before = OpenDescriptors();
  std::uint64_t largest = 0;
  std::uint32_t extents = 0;
  for (int i = 0; i < 50; ++i) {
    const Block block = segment_.Allocate(16 << 20);
    largest = std::max(largest, segment_.mapping(block.extent).bytes);
    extents = block.extent;
  }
  EXPECT_GT(extents, 5u);
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_GT(largest, 64u << 20) << "extents of a large job are larger, and fewer";
}

// Another user may take these names: the directory is public, and the control file's name is known.
TEST_F(Blocks, NeedNoNameThatSomebodyTook) {
  for (std::uint32_t index = 1; index <= 20; ++index) {
    std::ofstream(ShmPath(segment_.name() + "." + std::to_string(index))) << "taken";
  }
  const Block block = segment_.Allocate(kPage);
  EXPECT_GT(block.extent, 20u);
  EXPECT_NE(segment_.Allocate(64 << 20).extent, block.extent);
  const auto slot = test::PublishSlot(segment_, test::MakeSlot("a", 8, 2));
  SlotRingWriter writer(slot.block.data, segment_.producer(), segment_.gate());
  test::WriteNumbers(writer, 1);
  EXPECT_EQ(test::InChild([&] {
              std::string reason;
              const auto view = SegmentView::Attach(segment_.name(), &reason);
              return view != nullptr && view->OpenSlot(slot.index, &reason) ? 0 : 1;
            }),
            0);
}

TEST_F(Blocks, StartWithZeroesWhereAskedAlsoWhenUsedAgain) {
  Block block = segment_.Allocate(2 * kPage);
  std::memset(block.data, 0xff, block.bytes);
  segment_.Free(block);
  block = segment_.Allocate(2 * kPage, kPage);
  EXPECT_EQ(block.data[0], std::byte{0});
  EXPECT_EQ(block.data[kPage - 1], std::byte{0});
}

TEST_F(Blocks, ADirectoryThatIsFullRefusesAndTakesAgainAfterARelease) {
  const Block block = segment_.Allocate(kPage);
  const auto registration = test::MakeSlot("a", 1, 1);
  std::memcpy(block.data, &registration, sizeof(registration));
  for (std::uint32_t i = 0; i < layout::kMaxSlots; ++i) ASSERT_EQ(segment_.Publish(block), i);
  EXPECT_TRUE(segment_.directory_full());
  EXPECT_THROW(segment_.Publish(block), SharedMemoryError);
  segment_.Release(77, block);
  EXPECT_EQ(segment_.Publish(segment_.Allocate(kPage)), 77u);
  EXPECT_EQ(segment_.producer()->slot_count, layout::kMaxSlots);
}

TEST_F(Blocks, ADirectoryTakesMemoryForTheEntriesThatAreUsed) {
  const auto taken = [&] {
    struct stat info = {};
    EXPECT_EQ(stat(ShmPath(segment_.name()).c_str(), &info), 0);
    EXPECT_EQ(info.st_size, static_cast<off_t>(layout::kControlBytes));
    return static_cast<std::uint64_t>(info.st_blocks) * 512;
  };
  EXPECT_EQ(taken(), layout::ControlBytesFor(0));
  for (std::uint32_t i = 0; i <= layout::kDirectoryStep; ++i) ASSERT_EQ(segment_.Reserve(), i);
  EXPECT_EQ(taken(), layout::ControlBytesFor(layout::kDirectoryStep + 1));
  EXPECT_EQ(segment_.shm_bytes(), taken());
}

TEST_F(Blocks, AnIndexThatIsReservedIsSeenWhenItIsPublishedAndMayBeGivenBack) {
  const Block block = segment_.Allocate(kPage);
  const auto registration = test::MakeSlot("a", 1, 1);
  std::memcpy(block.data, &registration, sizeof(registration));
  const std::uint32_t first = segment_.Reserve();
  const std::uint32_t second = segment_.Reserve();
  EXPECT_EQ(segment_.producer()->slot_count, 0u);
  segment_.Publish(second, block);
  EXPECT_EQ(segment_.producer()->slot_count, 2u);
  std::string reason;
  const auto view = SegmentView::Attach(segment_.name(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  EXPECT_EQ(layout::DirectoryState(view->directory_word(first)), layout::SlotState::kEmpty);
  EXPECT_EQ(layout::DirectoryState(view->directory_word(second)), layout::SlotState::kLive);
  segment_.Unreserve(first);
  EXPECT_EQ(segment_.Publish(block), first);
}

TEST_F(Blocks, AReaderThatScribblesOnTheSlotCountDoesNotSteerTheWriter) {
  const Block block = segment_.Allocate(kPage);
  EXPECT_EQ(segment_.Publish(block), 0u);
  segment_.producer()->slot_count = 1'000'000'000;
  EXPECT_EQ(segment_.Publish(block), 1u);
}

}  // namespace
}  // namespace cgdebug::ring
