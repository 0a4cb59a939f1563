// How one slot's ring is read and accounted for, with a real segment of this process.
#include "daemon/ingest/slot_consumer.h"

#include <gtest/gtest.h>

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
  void SetUp() override {
    const auto registration = test::MakeSlot("a", 3, 4);
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

}  // namespace
}  // namespace cgdebug::ingest
