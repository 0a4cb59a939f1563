// A slot that holds a page of an op log is, to everybody behind ingest, one slot for each row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/ingest/attached_segment.h"
#include "daemon/pipeline/fan_out.h"
#include "daemon/sinks/memory_sink.h"
#include "daemon/sinks/model_sink.h"
#include "tests/support/ring/op_log_fixture.h"

namespace cgdebug::ingest {
namespace {

using layout::Lossless;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class NotingSink final : public pipeline::Sink {
 public:
  void OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback&) override {
    opened.push_back(slot);
  }
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback&) override {
    (delivery.seen_before ? again : consumed).push_back(delivery.snapshot);
  }
  void Lose(const pipeline::Gap& gap) override { gaps.push_back(gap); }
  void Found(const pipeline::Finding& finding) override { findings.push_back(finding); }
  void CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                 pipeline::SlotFeedback&) override {
    closed.emplace_back(slot->probe, last_replay);
  }
  void ForgetSlot(const pipeline::SlotPtr& slot) override { forgotten.push_back(slot->probe); }

  std::vector<pipeline::SlotPtr> opened;
  std::vector<pipeline::SnapshotPtr> consumed, again;
  std::vector<pipeline::Gap> gaps;
  std::vector<pipeline::Finding> findings;
  std::vector<std::pair<std::string, std::uint64_t>> closed;
  std::vector<std::string> forgotten;
};

class OpLogSlots : public ::testing::Test {
 protected:
  void Publish(std::size_t rows, std::uint32_t capacity = 4) {
    registration_ = test::MakeOpLogSlot(segment_, test::MakeRows(rows), capacity);
    registration_.order = 7;
    slot_ = test::PublishSlot(segment_, registration_);
    writer_.emplace(slot_.block.data, segment_.producer(), segment_.gate());
  }
  void Adopt() {
    attached_ = nullptr;
    std::string reason;
    auto view = ring::SegmentView::Attach(segment_.name(), &reason);
    ASSERT_NE(view, nullptr) << reason;
    auto adopted = AttachedSegment::Adopt(std::move(view), "",
                                          {&registry_, &controls_, &reads_, &payloads_, &model_});
    ASSERT_TRUE(adopted.ok()) << adopted.error().message;
    attached_ = *std::move(adopted);
  }
  void TearDown() override {
    attached_ = nullptr;
    segment_.Close(/*unlink=*/true);
  }
  void Pass() {
    std::vector<SlotConsumer*> ready;
    attached_->BeginPass(/*thorough=*/true, &ready);
    for (SlotConsumer* slot : ready) {
      slot->Prepare();
      attached_->Commit(slot);
    }
    attached_->EndPass();
  }
  std::byte* Table() {
    return segment_.mapping(registration_.expected_extent).data + registration_.expected_offset;
  }
  std::byte* Payload(std::uint64_t ordinal) {
    const std::uint64_t place = (ordinal - 1) % registration_.capacity;
    return slot_.block.data + registration_.payload_offset +
           place * registration_.payload_stride_bytes;
  }
  void ExpectRefusal(const std::string& text) {
    Adopt();
    ASSERT_THAT(attached_->skipped_slots(), SizeIs(1));
    EXPECT_THAT(attached_->skipped_slots()[0].reason, HasSubstr(text));
    EXPECT_EQ(attached_->slot_count(), 0u);
    EXPECT_THAT(sink_.opened, SizeIs(0));
  }
  std::vector<pipeline::SlotRecord> Records() {
    return registry_.Slots(registry_.Sessions().at(0).session);
  }
  layout::SlotControl Control() { return segment_.OpenSlot(slot_.index, slot_.block).control(); }

  ring::SegmentWriter segment_{ring::Identity{}};
  layout::SlotRegistration registration_ = {};
  test::Slot slot_;
  std::optional<ring::SlotRingWriter> writer_;
  pipeline::Registry registry_;
  pipeline::ControlQueue controls_;
  pipeline::RingReads reads_;
  pipeline::EventLog events_;
  pipeline::PayloadPool payloads_{1 << 20};
  pipeline::SnapshotStore store_{1 << 20};
  NotingSink sink_;
  sinks::MemorySink memory_{&store_};
  pipeline::FanOut both_{{&memory_, &sink_}};
  sinks::ModelSink model_{&registry_, &events_, &both_};
  std::unique_ptr<AttachedSegment> attached_;
};

TEST_F(OpLogSlots, EachRowIsAProbeWithStatisticsOfEachReplay) {
  Publish(3);
  test::WriteRows(*writer_);
  test::WriteRows(*writer_, /*nan_row=*/1);
  Adopt();
  Pass();
  Pass();
  ASSERT_THAT(sink_.opened, SizeIs(3));
  const pipeline::SlotIdentity& row = *sink_.opened[1];
  EXPECT_EQ(row.probe, "row1");
  EXPECT_EQ(row.site, "model.py:1");
  EXPECT_EQ(row.op, "1 aten.mm");
  EXPECT_THAT(row.shape, ElementsAre(2));
  EXPECT_EQ(row.dtype, layout::Dtype::kFloat32);
  EXPECT_EQ(row.registration.order, 8u);
  EXPECT_EQ(row.registration.probe_id, 101u);
  EXPECT_EQ(row.registration.actions, layout::kActionStats);
  EXPECT_EQ(row.registration.stats_every, 1u);
  ASSERT_THAT(sink_.consumed, SizeIs(6)) << "replay by replay, in graph order";
  for (std::size_t i = 0; i < 6; ++i) {
    const pipeline::Snapshot& snapshot = *sink_.consumed[i];
    EXPECT_EQ(snapshot.slot, sink_.opened[i % 3]);
    EXPECT_EQ(snapshot.replay, i / 3 + 1);
    EXPECT_EQ(snapshot.stats.count, i % 3 + 1);
    EXPECT_EQ(snapshot.stats.nan, i == 4 ? 1u : 0u);
    EXPECT_FALSE(snapshot.has_values);
    EXPECT_EQ(snapshot.changed, i < 3 || i == 4);
  }
  ASSERT_THAT(sink_.findings, SizeIs(1));
  EXPECT_EQ(sink_.findings[0].slot->probe, "row1");
  EXPECT_EQ(sink_.findings[0].replay, 2u);
  ASSERT_THAT(Records(), SizeIs(3));
  EXPECT_EQ(Records()[2].counters.consumed, 2u);
  EXPECT_EQ(Records()[2].counters.bytes, 2 * sizeof(layout::DeviceStats));
  EXPECT_EQ(registry_.Sessions()[0].probes.all, 3u);
  EXPECT_THAT(store_.History(sink_.opened[2]), SizeIs(2));
}

TEST_F(OpLogSlots, AnEntryThatIsLostIsALossOfEachRow) {
  Publish(2, /*capacity=*/4);
  for (int i = 0; i < 10; ++i) test::WriteRows(*writer_);
  Adopt();
  for (int i = 0; i < 4; ++i) Pass();
  ASSERT_THAT(sink_.gaps, SizeIs(2));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(sink_.gaps[i].slot, sink_.opened[i]);
    EXPECT_EQ(sink_.gaps[i].count, 6u);
    EXPECT_EQ(sink_.gaps[i].last_replay, 6u);
    EXPECT_EQ(Records()[i].counters.lost_overwritten, 6u);
    EXPECT_EQ(Records()[i].counters.produced, 10u);
  }
  EXPECT_THAT(sink_.consumed, SizeIs(8));
}

TEST_F(OpLogSlots, IfOneRowCannotBeTrueNoneOfThatReplayIsShown) {
  Publish(3);
  test::WriteRows(*writer_);
  test::WriteRows(*writer_);
  const layout::DeviceStats wrong = test::StatsOfRow(99);
  std::memcpy(Payload(1) + 2 * sizeof(wrong), &wrong, sizeof(wrong));
  Adopt();
  Pass();
  Pass();
  EXPECT_THAT(sink_.consumed, SizeIs(3));
  ASSERT_THAT(sink_.gaps, SizeIs(3));
  EXPECT_EQ(sink_.gaps[0].cause, layout::LossCause::kCorrupted);
  EXPECT_EQ(Records()[0].counters.lost_damaged, 1u);
  pipeline::RingContent content;
  attached_->Read({sink_.opened[0], 1, 2, 1 << 20}, &content);
  EXPECT_THAT(content.entries, SizeIs(1));
  EXPECT_THAT(content.unreadable, SizeIs(1));
}

TEST_F(OpLogSlots, TheRingIsReadRowByRow) {
  Publish(3);
  test::WriteRows(*writer_);
  test::WriteRows(*writer_, 2);
  Adopt();
  pipeline::RingContent content;
  attached_->Read({sink_.opened[2], 1, 2, 1 << 20}, &content);
  ASSERT_THAT(content.entries, SizeIs(2));
  EXPECT_TRUE(content.readable);
  EXPECT_EQ(content.entries[1].stats.nan, 1u);
  EXPECT_EQ(content.entries[1].replay, 2u);
  EXPECT_NE(content.entries[1].flags & layout::kEntryIsStats, 0u);
}

TEST_F(OpLogSlots, TheNextDaemonKnowsTheFirstNanOfEachRow) {
  Publish(2, /*capacity=*/2);
  Adopt();
  test::WriteRows(*writer_, 1);
  Pass();
  for (int i = 0; i < 5; ++i) test::WriteRows(*writer_);
  Adopt();
  EXPECT_EQ(Records()[0].firsts.nan.replay, 0u);
  EXPECT_EQ(Records()[1].firsts.nan.replay, 1u) << "which is in no ring any more";
  Pass();
  Pass();
  ASSERT_THAT(sink_.findings, SizeIs(2));
  EXPECT_EQ(sink_.findings[1].slot->probe, "row1");
}

TEST_F(OpLogSlots, HeadsAreThoseOfRows) {
  Publish(2);
  test::WriteRows(*writer_);
  Adopt();
  pipeline::RingHeads heads;
  attached_->AddHeads(&heads);
  ASSERT_THAT(heads, SizeIs(2));
  EXPECT_EQ(heads[1].slot, sink_.opened[1]);
  EXPECT_GT(attached_->Unread(heads[1]), 0u);
  Pass();
  EXPECT_EQ(attached_->Unread(heads[0]), 0u);
  EXPECT_EQ(attached_->Unread(heads[1]), 0u);
}

TEST_F(OpLogSlots, ARecordingOfOneRowMakesTheWholePageLossless) {
  Publish(2);
  Adopt();
  const auto tell = [&](std::size_t row, Lossless lossless) {
    attached_->SetControl({.slot = sink_.opened[row], .control = {}, .lossless = lossless});
  };
  tell(1, Lossless::kOn);
  EXPECT_EQ(Control().lossless, Lossless::kOn);
  tell(0, Lossless::kOff);
  EXPECT_EQ(Control().lossless, Lossless::kOn);
  tell(1, Lossless::kOff);
  EXPECT_EQ(Control().lossless, Lossless::kOff);
  tell(1, Lossless::kAsRegistered);
  EXPECT_EQ(Control().lossless, Lossless::kAsRegistered);
}

TEST_F(OpLogSlots, WhatTheProducerGivesUpIsClosedRowByRow) {
  Publish(2);
  test::WriteRows(*writer_);
  Adopt();
  segment_.Release(slot_.index, slot_.block);
  Pass();
  EXPECT_THAT(sink_.closed, ElementsAre(std::pair<std::string, std::uint64_t>("row0", 1),
                                        std::pair<std::string, std::uint64_t>("row1", 1)));
  EXPECT_THAT(sink_.gaps, SizeIs(2));
  EXPECT_THAT(sink_.forgotten, SizeIs(0)) << "the last values stay for a while";
}

TEST_F(OpLogSlots, ATableThatIsDamagedIsRefusedWithTheRow) {
  Publish(3);
  layout::OpLogRow row;
  std::memcpy(&row, Table() + sizeof(row), sizeof(row));
  row.dtype = 99;
  std::memcpy(Table() + sizeof(row), &row, sizeof(row));
  ExpectRefusal("row 1: unknown dtype 99");
}

TEST_F(OpLogSlots, ATextOutsideTheTableIsRefused) {
  Publish(3);
  layout::OpLogRow row;
  std::memcpy(&row, Table(), sizeof(row));
  row.text_offset = registration_.table_bytes - 1;
  std::memcpy(Table(), &row, sizeof(row));
  ExpectRefusal("row 0: a text lies outside the table");
}

TEST_F(OpLogSlots, ATableOutsideItsExtentIsRefused) {
  registration_ = test::MakeOpLogSlot(segment_, test::MakeRows(2), 2);
  registration_.expected_offset = std::uint64_t{1} << 40;
  slot_ = test::PublishSlot(segment_, registration_);
  ExpectRefusal("the table of an op log's rows lies outside its extent");
}

TEST_F(OpLogSlots, AnImpossiblePageIsRefused) {
  registration_ = test::MakeOpLogSlot(segment_, test::MakeRows(2), 2);
  registration_.table_bytes = sizeof(layout::OpLogRow);
  slot_ = test::PublishSlot(segment_, registration_);
  ExpectRefusal("the table of an op log's rows has an impossible size");
}

class MasksOfOpLogs : public OpLogSlots {
 protected:
  // A page of a log whose rows are these, each of 4 elements. Its entries are of replays that begin
  // at the serial that is given to Write().
  struct Page {
    test::Slot slot;
    std::optional<ring::SlotRingWriter> writer;
    std::size_t rows;
  };
  void AddPage(const std::vector<std::string>& ops) {
    std::vector<ring::OpLogRow> rows = test::MakeRows(ops.size());
    for (std::size_t i = 0; i < ops.size(); ++i) {
      rows[i].probe_id += next_order_;
      rows[i].name = ops[i];
      rows[i].op = ops[i];
      rows[i].shape = {4};
    }
    layout::SlotRegistration registration = test::MakeOpLogSlot(segment_, rows, 4);
    registration.order = next_order_;
    next_order_ += rows.size();
    Page& page = pages_.emplace_back(
        Page{test::PublishSlot(segment_, registration), std::nullopt, ops.size()});
    page.writer.emplace(page.slot.block.data, segment_.producer(), segment_.gate());
  }
  // How many -Inf each row has; -1: a NaN.
  void Write(std::size_t page, std::uint64_t serial, const std::vector<int>& neg_inf) {
    ring::SlotRingWriter& writer = *pages_[page].writer;
    ASSERT_TRUE(writer.Begin(serial));
    std::vector<layout::DeviceStats> rows;
    for (const int count : neg_inf) {
      layout::DeviceStats& stats = rows.emplace_back(test::StatsOfRow(4, count < 0 ? 0 : -1));
      if (count <= 0) continue;
      stats.neg_inf = static_cast<std::uint64_t>(count);
      stats.l1 = stats.l2_squared = 4 - count;
      stats.flags |= layout::kStatsHasNonfinite;
    }
    std::memcpy(writer.payload(), rows.data(), writer.payload_bytes());
    writer.Commit(1);
  }
  std::vector<std::string> Found() {
    std::vector<std::string> found;
    for (const pipeline::Finding& one : sink_.findings) {
      found.push_back(one.slot->probe + " @" + std::to_string(one.replay));
    }
    return found;
  }
  pipeline::SessionRecord Session() { return registry_.Sessions().at(0); }

  std::deque<Page> pages_;
  std::uint64_t next_order_ = 7;
};

TEST_F(MasksOfOpLogs, AreNoFindingHoweverManyInfTheyHave) {
  AddPage({"1 aten.masked_fill.Scalar", "2 aten.add.Tensor 1", "3 aten._softmax.default 2"});
  Adopt();
  Write(0, 10, {2, 2, 0});
  Pass();
  Write(0, 20, {3, 3, 0});
  Pass();
  EXPECT_THAT(Found(), ElementsAre());
  EXPECT_EQ(Session().probes.nonfinite, 0u);
  EXPECT_EQ(Session().first_inf.slot, nullptr);
  EXPECT_EQ(Session().probes.masks, 2u);
  EXPECT_EQ(Session().probes.first_mask, "1 aten.masked_fill.Scalar");
  EXPECT_TRUE(sink_.consumed[1]->is_mask);
  EXPECT_FALSE(sink_.consumed[2]->is_mask);
}

TEST_F(MasksOfOpLogs, DoNotHideAnInfThatAnOpMade) {
  AddPage({"1 aten.masked_fill.Scalar", "2 aten.log.default", "3 aten.add.Tensor 1"});
  Adopt();
  Write(0, 10, {1, 0, 1});
  Pass();
  Write(0, 20, {1, 1, 1});
  Pass();
  Write(0, 30, {1, 1, 3});
  Pass();
  EXPECT_THAT(Found(), ElementsAre("2 aten.log.default @2", "3 aten.add.Tensor 1 @3"))
      << "more than the mask has is no mask";
  EXPECT_EQ(Session().first_inf.slot->probe, "2 aten.log.default");
  EXPECT_EQ(Session().probes.nonfinite, 2u);
}

TEST_F(MasksOfOpLogs, AreInheritedFromAnotherPageOfTheReplay) {
  AddPage({"1 aten.masked_fill.Scalar"});
  AddPage({"2 aten.add.Tensor 1"});
  Adopt();
  for (const std::uint64_t serial : {10u, 20u}) {
    Write(0, serial, {2});
    Write(1, serial, {2});
  }
  for (int i = 0; i < 2; ++i) Pass();
  EXPECT_THAT(Found(), ElementsAre());
  EXPECT_EQ(Session().probes.masks, 2u);
}

TEST_F(MasksOfOpLogs, AreInheritedFromAPageThatIsReadLater) {
  AddPage({"1 aten.masked_fill.Scalar"});
  AddPage({"2 aten.add.Tensor 1", "3 aten.mul.Tensor 2"});
  Adopt();
  Write(1, 10, {2, 2});
  Pass();
  EXPECT_THAT(Found(), ElementsAre()) << "nobody knows yet";
  EXPECT_TRUE(sink_.consumed[0]->is_mask) << "no line before it is known";
  Write(0, 10, {2});
  Pass();
  EXPECT_THAT(Found(), ElementsAre());
  EXPECT_EQ(Session().probes.masks, 3u);
  Write(1, 20, {2, 2});
  Pass();
  Write(0, 20, {0});
  Pass();
  EXPECT_THAT(Found(), ElementsAre("2 aten.add.Tensor 1 @2", "3 aten.mul.Tensor 2 @2"))
      << "what they read is finite";
}

TEST_F(MasksOfOpLogs, AreNoFindingInAProbeThatKeepsTheirValues) {
  AddPage({"1 aten.masked_fill.Scalar", "2 aten.log.default"});
  std::deque<std::pair<test::Slot, std::optional<ring::SlotRingWriter>>> values;
  for (const char* name : {"1 aten.masked_fill.Scalar.value", "2 aten.log.default.value"}) {
    layout::SlotRegistration registration = test::MakeSlot(name, 4, 4);
    registration.dtype = static_cast<std::uint16_t>(layout::Dtype::kFloat32);
    registration.order = next_order_++;
    registration.actions = layout::kActionRecord;
    auto& [slot, writer] =
        values.emplace_back(test::PublishSlot(segment_, registration), std::nullopt);
    writer.emplace(slot.block.data, segment_.producer(), segment_.gate());
  }
  Adopt();
  const float kInf = std::numeric_limits<float>::infinity();
  const auto write = [&](std::uint64_t serial) {
    for (auto& [slot, writer] : values) {
      ASSERT_TRUE(writer->Begin(serial));
      const float row[] = {-kInf, 1, 1, 1};
      std::memcpy(writer->payload(), row, sizeof(row));
      writer->Commit(1);
    }
  };
  write(10);
  Pass();
  EXPECT_THAT(Found(), ElementsAre()) << "the page was not read yet";
  Write(0, 10, {1, 1});
  Pass();
  EXPECT_THAT(Found(),
              UnorderedElementsAre("2 aten.log.default @1", "2 aten.log.default.value @1"));
  Write(0, 20, {1, 1});
  Pass();
  write(20);
  Pass();
  EXPECT_EQ(Found().size(), 2u);
  EXPECT_EQ(Session().probes.masks, 2u);
}

TEST_F(MasksOfOpLogs, ThatNoRowWroteAreNoneOnceTheyChange) {
  AddPage({"1 input", "2 input"});
  Adopt();
  Write(0, 10, {2, 0});
  Pass();
  EXPECT_THAT(Found(), ElementsAre());
  Write(0, 20, {2, 1});
  Pass();
  EXPECT_THAT(Found(), ElementsAre("2 input @2"));
  Write(0, 30, {3, 1});
  Pass();
  EXPECT_THAT(Found(), ElementsAre("2 input @2", "1 input @3"));
}

TEST_F(MasksOfOpLogs, WithANanAreFindings) {
  AddPage({"1 aten.masked_fill.Scalar"});
  Adopt();
  Write(0, 10, {-1});
  Pass();
  EXPECT_THAT(Found(), ElementsAre("1 aten.masked_fill.Scalar @1"));
}

TEST(OpLogTable, DetailsAreKeptWholeOrLeftOut) {
  std::vector<ring::OpLogRow> rows = test::MakeRows(3);
  rows[0].details = R"({"args":"self=#3, dim=1"})";
  rows[1].details = std::string(layout::kMaxOpDetailsBytes, 'x');
  rows[2].details = std::string(layout::kMaxOpDetailsBytes + 1, 'x');
  std::string reason;
  const auto read = ring::DecodeOpLog(ring::EncodeOpLog(rows), 3, &reason);
  ASSERT_TRUE(read) << reason;
  EXPECT_EQ(read->at(0).details, rows[0].details);
  EXPECT_EQ(read->at(1).details, rows[1].details);
  EXPECT_EQ(read->at(2).details, "");  // half of a JSON object says nothing
}

TEST(OpLogTable, TextsThatAreTooLongAreCut) {
  std::vector<ring::OpLogRow> rows = test::MakeRows(2);
  rows[0].op = std::string(20000, 'x');
  rows[0].site = std::string(2000, 'y');
  std::string reason;
  const auto read = ring::DecodeOpLog(ring::EncodeOpLog(rows), 2, &reason);
  ASSERT_TRUE(read) << reason;
  EXPECT_EQ(read->at(0).op.size(), layout::kMaxOpTextBytes);
  EXPECT_EQ(read->at(0).site.size(), layout::kMaxNameBytes);
  EXPECT_EQ(read->at(0).name, "row0");
  EXPECT_EQ(read->at(1).name, "row1");
  EXPECT_EQ(read->at(1).op, "1 aten.mm");
  EXPECT_THAT(read->at(1).shape, ElementsAre(2));
}

}  // namespace
}  // namespace cgdebug::ingest
