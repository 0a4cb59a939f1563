// Blocks are reassigned while a reader looks, and producers start while others clean up. Proves
// nothing about interleavings that did not occur.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "libprobe/ring/segment/reclaim.h"
#include "libprobe/ring/shared_copy.h"
#include "tests/support/child_process.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::ring {
namespace {

#if defined(CGDEBUG_SANITIZED)
constexpr int kSlots = 20'000;
constexpr int kStarts = 60;
#else
constexpr int kSlots = 200'000;
constexpr int kStarts = 300;
#endif

// Generation g of directory entry 0 is called "g", and all of its numbers are g.
class Generations {
 public:
  explicit Generations(SegmentWriter* segment) : segment_(segment) {}

  void Next() {
    ++generation_;
    auto registration = test::MakeSlot(std::to_string(generation_), 16, 2);
    registration.order = generation_;
    const auto geometry = layout::ComputeGeometry(registration.payload_bytes, 2);
    test::Slot next;
    next.block = segment_->Allocate(geometry.block_bytes, geometry.payload_offset);
    CopyShared(next.block.data, &registration, sizeof(registration));
    if (slot_.block.bytes != 0) segment_->Release(slot_.index, slot_.block);
    next.index = segment_->Publish(next.block);
    slot_ = next;
    SlotRingWriter writer(slot_.block.data, segment_->producer(), segment_->gate());
    const std::vector<std::int32_t> values(16, static_cast<std::int32_t>(generation_));
    for (int i = 0; i < 3; ++i) {
      writer.Begin();
      CopyShared(writer.payload(), values.data(), writer.payload_bytes());
      writer.Commit(1);
    }
  }

 private:
  SegmentWriter* segment_;
  std::uint64_t generation_ = 0;
  test::Slot slot_;
};

TEST(SegmentStress, AReaderNeverTakesOneSlotForAnother) {
  SegmentWriter segment{Identity{}};
  std::string reason;
  // Opens its own segment: the producer's lock goes with the view, but nothing here needs it.
  const auto view = SegmentView::Attach(segment.name(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  std::atomic<bool> stop{false};
  std::thread producer([&] {
    Generations generations(&segment);
    for (int i = 0; i < kSlots; ++i) generations.Next();
    stop = true;
  });
  Entry entry;
  std::uint64_t opened = 0;
  std::uint64_t read = 0;
  std::uint64_t newest = 0;
  while (!stop) {
    if (view->slot_count() == 0) continue;
    auto slot = view->OpenSlot(0, &reason);
    if (!slot) {
      EXPECT_EQ(reason, "") << "a reassigned slot is not damaged";
      continue;
    }
    ++opened;
    const std::string name = std::to_string(slot->generation());
    EXPECT_EQ(slot->registration().name, name);
    for (std::uint64_t ordinal = 1; ordinal <= 3; ++ordinal) {
      if (slot->Read(ordinal, &entry) != ReadStatus::kOk) continue;
      ++read;
      for (const std::int32_t value : test::Numbers(entry)) {
        ASSERT_EQ(std::to_string(value), name);
      }
    }
    // The daemon also writes, and may be late: its credit must not pass for the next slot's.
    const std::uint64_t consumed = slot->consumed();
    const bool is_new = slot->generation() != newest;
    newest = slot->generation();
    if (is_new && slot->valid()) {
      EXPECT_EQ(consumed, 0u) << "nobody has read it";
    }
    slot->SetConsumed(2, 2);
    if (::testing::Test::HasFailure()) break;
  }
  producer.join();
  EXPECT_GT(opened, 0u);
  EXPECT_GT(read, 0u);
  segment.Close(/*unlink=*/true);
}

// The creation window: a control file that is created but not locked yet looks like a dead
// producer's.
TEST(SegmentStress, ProducersStartWhileOthersCleanUp) {
  std::vector<std::unique_ptr<test::ChildProcess>> cleaners;
  for (int i = 0; i < 2; ++i) {
    cleaners.push_back(std::make_unique<test::ChildProcess>([](const test::Line& line) {
      line.Send("ready");
      while (true) {
        ReclaimDeadSegments(0);  // of any age, including the one that is being created
        const timespec nap = {0, 200'000};
        nanosleep(&nap, nullptr);
      }
      return 0;
    }));
  }
  for (auto& cleaner : cleaners) ASSERT_EQ(cleaner->line().Receive(), "ready");
  test::ChildProcess producer([](const test::Line& line) {
    for (int i = 0; i < kStarts; ++i) {
      try {
        SegmentWriter segment{Identity{}};
        segment.Allocate(1);
        if (!std::filesystem::exists(ShmPath(segment.name()))) line.Send("lost its name");
        if (!std::filesystem::exists(ShmPath(segment.name() + ".1"))) line.Send("lost an extent");
        segment.Close(/*unlink=*/true);
      } catch (const SharedMemoryError& error) {
        line.Send(error.what());
      }
    }
    line.Send("end");
    return 0;
  });
  EXPECT_EQ(producer.line().Receive(), "end");
}

// If a producer is killed at any point of its start, the next one removes everything it left.
TEST(SegmentStress, ProducersKilledWhileTheyStartLeaveNothing) {
  for (int i = 0; i < kStarts; ++i) {
    test::ChildProcess producer([](const test::Line& line) {
      line.Send("ready");
      while (true) {
        SegmentWriter segment{Identity{}};
        segment.Close(/*unlink=*/true);
      }
      return 0;
    });
    ASSERT_EQ(producer.line().Receive(), "ready");
    const timespec nap = {0, (i * 7919) % 500'000};
    nanosleep(&nap, nullptr);
    producer.Kill();
  }
  ASSERT_EQ(test::InChild([] {
              ReclaimDeadSegments(0);
              return 0;
            }),
            0);
  for (const std::string& name : ListShm()) {
    EXPECT_FALSE(IsControlName(name) || IsTemporaryName(name)) << name;
  }
}

}  // namespace
}  // namespace cgdebug::ring
