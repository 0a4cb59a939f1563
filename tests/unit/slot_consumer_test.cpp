// How one slot's ring is read and accounted for, with a real segment of this process.
#include "daemon/ingest/slot_consumer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>

#include "libprobe/ring/shared_copy.h"
#include "tests/support/ring_fixture.h"

namespace cgdebug::ingest {
namespace {

using pipeline::Gap;

class FakeSink final : public pipeline::Sink {
 public:
  void Consume(const pipeline::Delivery&, pipeline::SlotFeedback&) override {}
  void Lose(const Gap& gap) override { gaps.push_back(gap); }

  std::vector<Gap> gaps;
};

class ConsumedSlot : public ::testing::Test {
 protected:
  explicit ConsumedSlot(std::uint64_t elements = 3) : elements_(elements) {}

  void SetUp() override {
    const auto registration = test::MakeSlot("a", elements_, 4);
    slot_ = test::PublishSlot(segment_, registration);
    writer_.emplace(slot_.block.data, segment_.producer(), segment_.gate());
    std::string reason;
    view_ = ring::SegmentView::Attach(segment_.name(), &reason);
    ASSERT_NE(view_, nullptr) << reason;
    auto ring = view_->OpenSlot(slot_.index, &reason);
    ASSERT_TRUE(ring) << reason;
    const auto session = registry_.AddSession(
        pipeline::MakeSessionIdentity(view_->name(), view_->uuid(), view_->header()));
    auto slot = std::make_shared<const pipeline::SlotIdentity>(
        pipeline::MakeSlotIdentity(session, slot_.index, ring->generation(), registration));
    const Destination destination = {&registry_, &controls_, &reads_, &events_, &payloads_, &sink_};
    consumer_.emplace(std::move(slot), *std::move(ring), view_.get(), destination);
    consumer_->Start();
  }
  void TearDown() override { segment_.Close(/*unlink=*/true); }

  SlotConsumer::Step Step() {
    consumer_->Prepare();
    return consumer_->Commit();
  }
  layout::EntryHeader* Header(std::uint64_t ordinal) {
    auto* headers = reinterpret_cast<layout::EntryHeader*>(
        slot_.block.data + consumer_->slot()->registration.headers_offset);
    return &headers[(ordinal - 1) % 4];
  }

  const std::uint64_t elements_;
  ring::SegmentWriter segment_{ring::Identity{}};
  test::Slot slot_;
  std::optional<ring::SlotRingWriter> writer_;
  std::unique_ptr<ring::SegmentView> view_;
  pipeline::Registry registry_;
  pipeline::ControlQueue controls_;
  pipeline::RingReads reads_;
  pipeline::EventLog events_;
  pipeline::PayloadPool payloads_{1 << 20};
  FakeSink sink_;
  std::optional<SlotConsumer> consumer_;
};

TEST_F(ConsumedSlot, TellsOfWhatWasOverwrittenBeforeItIsGivenUp) {
  for (int i = 1; i <= 10; ++i) test::WriteNumbers(*writer_, i);
  consumer_->Refresh();
  Header(7)->word = layout::EntryWord(7, layout::EntryState::kFilling);  // not there yet
  EXPECT_EQ(Step(), SlotConsumer::Step::kIdle);
  segment_.Release(slot_.index, slot_.block);
  EXPECT_EQ(Step(), SlotConsumer::Step::kGone);
  consumer_->GiveUp();
  ASSERT_EQ(sink_.gaps.size(), 2u);
  EXPECT_EQ(sink_.gaps[0].cause, Gap::Cause::kOverwritten);
  EXPECT_EQ(sink_.gaps[0].count, 6u);
  EXPECT_EQ(sink_.gaps[0].last_ordinal, 6u);
  EXPECT_EQ(sink_.gaps[1].cause, Gap::Cause::kReleased);
  EXPECT_EQ(sink_.gaps[1].count, 4u);
  EXPECT_EQ(sink_.gaps[1].last_ordinal, 10u);
}

TEST_F(ConsumedSlot, ReadingARingWhoseHeadIsRubbishEnds) {
  test::WriteNumbers(*writer_, 1);
  auto* head = reinterpret_cast<layout::SlotHead*>(slot_.block.data + layout::kSlotHeadOffset);
  ring::StoreRelaxed(head->accepted, ~std::uint64_t{0});
  const auto content = consumer_->Read({consumer_->slot(), 1, ~std::uint64_t{0}, 1 << 20});
  EXPECT_TRUE(content.entries.empty());
  EXPECT_EQ(content.newest, layout::kMaxOrdinal);
}

// Of all that this process may map, hardly anything is left.
class MemoryLimit {
 public:
  MemoryLimit() {
    std::ifstream("/proc/self/statm") >> mapped_pages_;
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = mapped_pages_ * static_cast<rlim_t>(getpagesize()) + kLeftBytes;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~MemoryLimit() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }

  bool Holds() const {
    void* more = mmap(nullptr, 2 * kLeftBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return more == MAP_FAILED || munmap(more, 2 * kLeftBytes) != 0;
  }

 private:
  static constexpr rlim_t kLeftBytes = 1u << 20;
  rlim_t mapped_pages_ = 0;
  rlimit before_ = {};
};

class LargeSlot : public ConsumedSlot {
 protected:
  LargeSlot() : ConsumedSlot(2u << 20) {}

  void Write(std::uint8_t value) {
    ASSERT_TRUE(writer_->Begin());
    std::memset(writer_->payload(), value, writer_->payload_bytes());
    writer_->Commit(0);
  }
};

TEST_F(LargeSlot, WhatThereIsNoMemoryForIsLostForThatReasonAndTheNextOneIsRead) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP() << "a sanitizer ends the process where there is no memory";
#endif
  Write(1);
  {
    const MemoryLimit limit;
    if (!limit.Holds()) GTEST_SKIP() << "this system has no RLIMIT_AS";
    const auto content = consumer_->Read({consumer_->slot(), 1, 1, 1 << 20});
    EXPECT_TRUE(content.entries.empty());
    EXPECT_EQ(content.unreadable,
              (std::map<std::uint64_t, Gap::Cause>{{1, Gap::Cause::kNoMemory}}));
    EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  }
  ASSERT_EQ(sink_.gaps.size(), 1u);
  EXPECT_EQ(sink_.gaps[0].cause, Gap::Cause::kNoMemory);
  EXPECT_EQ(sink_.gaps[0].count, 1u);
  EXPECT_EQ(sink_.gaps[0].last_ordinal, 1u);
  EXPECT_EQ(sink_.gaps[0].last_sequence, 1u);
  Write(1);
  EXPECT_EQ(Step(), SlotConsumer::Step::kConsumed);
  const auto record = registry_.Slots(consumer_->slot()->session).at(0);
  EXPECT_EQ(record.counters.consumed, 1u);
  EXPECT_EQ(record.counters.lost_no_memory, 1u);
  EXPECT_EQ(record.counters.lost_overwritten, 0u);
  ASSERT_NE(record.last, nullptr);
  EXPECT_EQ(record.last->ordinal, 2u);
  EXPECT_TRUE(record.last->changed) << "nobody knows what the one before was";
}

}  // namespace
}  // namespace cgdebug::ingest
