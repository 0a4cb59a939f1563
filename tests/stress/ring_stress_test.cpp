// One writer and one reader as threads on one mapping, which ThreadSanitizer can follow, and a
// reader on memory that is being scribbled over. They prove that no wrong value is returned in the
// interleavings that occurred, and nothing about others.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "libprobe/ring/shared_copy.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::ring {
namespace {

#if defined(CGDEBUG_SANITIZED)
constexpr int kSnapshots = 20'000;
constexpr int kScribbles = 3'000;
#else
constexpr int kSnapshots = 400'000;
constexpr int kScribbles = 40'000;
#endif

void ReadEverything(SlotRingReader& reader, std::uint64_t elements, std::uint64_t* consumed,
                    std::uint64_t* lost) {
  Entry entry;
  std::uint64_t next = 1;
  while (next <= kSnapshots) {
    const ReadStatus status = reader.Read(next, &entry);
    if (status == ReadStatus::kNone) {
      std::this_thread::yield();
      continue;
    }
    if (status == ReadStatus::kOverwritten) {
      const std::uint64_t oldest = std::max(reader.oldest(reader.accepted()), next + 1);
      *lost += oldest - next;
      next = oldest;
      reader.SetConsumed(next - 1, *lost);
      continue;
    }
    ASSERT_EQ(status, ReadStatus::kOk);
    ASSERT_EQ(entry.replay, next);
    const auto values = test::Numbers(entry);
    for (std::uint64_t i = 0; i < elements; ++i) {
      ASSERT_EQ(values[i], static_cast<std::int32_t>(next + i)) << "torn snapshot " << next;
    }
    ++*consumed;
    reader.SetConsumed(next, *lost);
    ++next;
  }
}

class RingStress : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RingStress, EverySnapshotIsReadWholeOrCountedAsLost) {
  SegmentWriter segment{Identity{}};
  const std::uint64_t elements = GetParam();
  const test::Slot slot = test::PublishSlot(segment, test::MakeSlot("a", elements, 4));
  SlotRingReader reader = segment.OpenSlot(slot.index, slot.block);
  std::uint64_t consumed = 0;
  std::uint64_t lost = 0;
  std::thread reading([&] { ReadEverything(reader, elements, &consumed, &lost); });
  SlotRingWriter writer(slot.block.data, segment.producer(), segment.gate());
  std::vector<std::int32_t> values(elements);
  for (int n = 1; n <= kSnapshots; ++n) {
    std::iota(values.begin(), values.end(), n);
    ASSERT_TRUE(writer.Begin());
    CopyShared(writer.payload(), values.data(), writer.payload_bytes());
    writer.Commit(n);
  }
  reading.join();
  EXPECT_EQ(consumed + lost, static_cast<std::uint64_t>(kSnapshots));
  EXPECT_GT(consumed, 0u);
  segment.Close(/*unlink=*/true);
}

INSTANTIATE_TEST_SUITE_P(Elements, RingStress, ::testing::Values(1, 16, 1000));

TEST(RingStress, AScribbledBlockNeverLeadsTheReaderAstray) {
  SegmentWriter segment{Identity{}};
  const test::Slot slot = test::PublishSlot(segment, test::MakeSlot("a", 64, 4));
  SlotRingWriter writer(slot.block.data, segment.producer(), segment.gate());
  for (int n = 1; n <= 4; ++n) test::WriteNumbers(writer, n);
  SlotRingReader reader = segment.OpenSlot(slot.index, slot.block);
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937_64 random(42);
    auto* bytes = reinterpret_cast<unsigned char*>(slot.block.data);
    while (!stop.load(std::memory_order_relaxed)) {
      std::atomic_ref(bytes[random() % slot.block.bytes])
          .store(static_cast<unsigned char>(random()), std::memory_order_relaxed);
    }
  });
  const auto* directory = reinterpret_cast<const layout::DirectoryEntry*>(
      reinterpret_cast<std::byte*>(segment.producer()) - layout::kProducerLineOffset +
      layout::kDirectoryOffset);
  Entry entry;
  std::mt19937_64 random(7);
  for (int i = 0; i < kScribbles; ++i) {
    if (reader.Read(random() % 8, &entry) == ReadStatus::kOk) {
      ASSERT_EQ(entry.payload.size(), 64u * 4) << "sizes come from the validated registration only";
    }
    std::string reason;
    const layout::DirectoryEntry& entry_in_directory = directory[slot.index];
    const auto again = SlotRingReader::Open(slot.block.data, slot.block.bytes, &entry_in_directory,
                                            LoadAcquire(entry_in_directory.word), &reason);
    if (again) {
      ASSERT_LE(again->registration().payload_offset +
                    again->registration().capacity * again->registration().payload_stride_bytes,
                slot.block.bytes);
      (void)again->Read(1, &entry);
      (void)again->verdict();
    } else {
      ASSERT_FALSE(reason.empty());
    }
  }
  stop = true;
  scribbler.join();
  segment.Close(/*unlink=*/true);
}

}  // namespace
}  // namespace cgdebug::ring
